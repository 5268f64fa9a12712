import io.openmessaging.storage.dledger.client.DLedgerClient;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Appends through Java's DLedgerClient, which waits for each response, from many threads.
 *
 * Arguments: the peers of the group "bench" and the number of threads. Each line of standard input is a round, "COUNT
 * SIZE"; one JSON object a round, as from QuorumAppend.
 */
public class ClientAppend {
    public static void main(String[] args) throws Exception {
        DLedgerClient client = new DLedgerClient("bench", args[0]);
        client.startup();
        while (client.append(new byte[] {1}).getCode() != 200) {
            Thread.sleep(100);
        }
        System.out.println("{\"started\": true}");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            int size = Integer.parseInt(words[1]);
            System.out.println(round(client, Integer.parseInt(args[1]), Integer.parseInt(words[0]), size));
        }
        Runtime.getRuntime().halt(0);
    }

    private static String round(DLedgerClient client, int threads, int count, int size) throws Exception {
        byte[] body = new byte[size];
        new Random(size).nextBytes(body);
        long[] taken = new long[count];
        AtomicInteger next = new AtomicInteger();
        AtomicInteger acknowledged = new AtomicInteger();
        Thread[] workers = new Thread[threads];
        long start = System.nanoTime();
        for (int i = 0; i < threads; i++) {
            workers[i] = new Thread(() -> {
                for (int number = next.getAndIncrement(); number < count; number = next.getAndIncrement()) {
                    long begun = System.nanoTime();
                    if (client.append(body).getCode() == 200) {
                        acknowledged.incrementAndGet();
                    }
                    taken[number] = System.nanoTime() - begun;
                }
            });
            workers[i].start();
        }
        for (Thread worker : workers) {
            worker.join();
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        Arrays.sort(taken);
        return String.format("{\"seconds\": %.6f, \"acknowledged\": %d, \"p50\": %.3f, \"p99\": %.3f}", seconds,
            acknowledged.get(), taken[count / 2] / 1e6, taken[(int) (count * 0.99)] / 1e6);
    }
}

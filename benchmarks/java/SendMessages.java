import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * RocketMQ's own producer. Arguments: the name server, a topic, and its queues. Each line of standard input is a
 * command, answered by a JSON object with its seconds or its error:
 *
 * send COUNT SIZE BATCH THREADS: so many threads send the messages, each in batches whose acknowledgement it waits for.
 */
public final class SendMessages {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench-producers");
        producer.setNamesrvAddr(args[0]);
        producer.setDefaultTopicQueueNums(Integer.parseInt(args[2]));
        producer.setSendMsgTimeout(30_000);
        producer.start();
        System.out.println("{\"started\": true}");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            try {
                byte[][] bodies = bodies(Integer.parseInt(words[2]));
                double seconds = sendAll(producer, args[1], words, bodies);
                System.out.printf("{\"seconds\": %.6f}%n", seconds);
            } catch (Exception failed) {
                System.out.printf("{\"error\": \"%s\"}%n", failed.toString().replaceAll("[\"\\\\\\p{Cntrl}]", " "));
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static double sendAll(DefaultMQProducer producer, String topic, String[] words, byte[][] bodies)
        throws Exception {
        int count = Integer.parseInt(words[1]);
        int batch = Integer.parseInt(words[3]);
        int threads = Integer.parseInt(words[4]);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<?>> parts = new ArrayList<>();
        long start = System.nanoTime();
        try {
            for (int thread = 0; thread < threads; thread++) {
                int from = (int) ((long) count * thread / threads);
                int to = (int) ((long) count * (thread + 1) / threads);
                parts.add(pool.submit(() -> {
                    send(producer, topic, from, to, batch, bodies);
                    return null;
                }));
            }
            for (Future<?> part : parts) {
                part.get();
            }
            return (System.nanoTime() - start) / 1e9;
        } finally {
            pool.shutdown();
        }
    }

    private static byte[][] bodies(int size) {
        byte[][] found = new byte[1024][size];
        Random random = new Random(size);
        for (byte[] body : found) {
            random.nextBytes(body);
        }
        return found;
    }

    private static void send(DefaultMQProducer producer, String topic, int from, int to, int size, byte[][] bodies)
        throws Exception {
        for (int sent = from; sent < to; sent += size) {
            List<Message> batch = new ArrayList<>();
            for (int i = sent; i < Math.min(sent + size, to); i++) {
                batch.add(new Message(topic, "tag" + i % 4, bodies[i % bodies.length]));
            }
            if (producer.send(batch).getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException("not sent");
            }
        }
    }
}

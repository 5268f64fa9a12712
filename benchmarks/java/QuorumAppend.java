import io.netty.bootstrap.ServerBootstrap;
import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.protocol.AppendEntryRequest;
import io.openmessaging.storage.dledger.protocol.AppendEntryResponse;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A group of three nodes with file stores in one process, with appends through the leader's handleAppend.
 *
 * Arguments: the folder for the stores, three ports of the loopback address, and Name=value for every setting of
 * DLedgerConfig (setName) that is not its default. Each line of standard input is a round, "COUNT SIZE IN_FLIGHT": COUNT appends
 * of bodies of SIZE bytes, with at most IN_FLIGHT without a response. One JSON object a round: seconds from the first
 * append to the last response, the number of acknowledged ones, and the milliseconds in which half and 99 of 100 were.
 */
public class QuorumAppend {
    public static void main(String[] args) throws Exception {
        StringBuilder peers = new StringBuilder();
        for (int node = 0; node < 3; node++) {
            peers.append(node == 0 ? "" : ";").append("n").append(node).append("-127.0.0.1:").append(args[1 + node]);
        }
        List<DLedgerServer> servers = new ArrayList<>();
        for (int node = 0; node < 3; node++) {
            DLedgerConfig config = new DLedgerConfig();
            config.setGroup("bench");
            config.setSelfId("n" + node);
            config.setPeers(peers.toString());
            config.setStoreBaseDir(args[0]);
            for (String setting : Arrays.asList(args).subList(4, args.length)) {
                String[] both = setting.split("=", 2);
                boolean isNumber = Character.isDigit(both[1].charAt(0));
                Object value = isNumber ? (Object) Integer.valueOf(both[1]) : Boolean.valueOf(both[1]);
                Class<?> type = isNumber ? int.class : boolean.class;
                DLedgerConfig.class.getMethod("set" + both[0], type).invoke(config, value);
            }
            DLedgerServer server = new DLedgerServer(config);
            listenOnLoopbackOnly(server);
            server.startup();
            servers.add(server);
        }
        DLedgerServer leader = leader(servers);
        System.out.printf("{\"leader\": \"%s\"}%n", leader.getMemberState().getSelfId());
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            int count = Integer.parseInt(words[0]);
            System.out.println(round(leader, count, Integer.parseInt(words[1]), Integer.parseInt(words[2])));
        }
        Runtime.getRuntime().halt(0);
    }

    /** DLedger has no setting for the address and would listen on all of them. */
    private static void listenOnLoopbackOnly(DLedgerServer server) throws Exception {
        Object remoting = server.getRemotingServer();
        Field bootstrap = remoting.getClass().getDeclaredField("serverBootstrap");
        bootstrap.setAccessible(true);
        bootstrap.set(remoting, new ServerBootstrap() {
            @Override
            public ServerBootstrap localAddress(SocketAddress address) {
                return super.localAddress(new InetSocketAddress("127.0.0.1", ((InetSocketAddress) address).getPort()));
            }
        });
    }

    private static DLedgerServer leader(List<DLedgerServer> servers) throws Exception {
        while (true) {
            for (DLedgerServer server : servers) {
                if (server.getMemberState().isLeader()) {
                    return server;
                }
            }
            Thread.sleep(10);
        }
    }

    private static String round(DLedgerServer leader, int count, int size, int inFlight) throws Exception {
        byte[] body = new byte[size];
        new Random(size).nextBytes(body);
        String id = leader.getMemberState().getSelfId();
        long[] taken = new long[count];
        Semaphore free = new Semaphore(inFlight);
        AtomicInteger acknowledged = new AtomicInteger();
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            AppendEntryRequest request = new AppendEntryRequest();
            request.setGroup("bench");
            request.setRemoteId(id);
            request.setBody(body);
            free.acquire();
            int number = i;
            long begun = System.nanoTime();
            CompletableFuture<AppendEntryResponse> future = leader.handleAppend(request);
            future.whenComplete((response, thrown) -> {
                taken[number] = System.nanoTime() - begun;
                if (thrown == null && response.getCode() == 200) {
                    acknowledged.incrementAndGet();
                }
                free.release();
            });
        }
        free.acquire(inFlight);
        double seconds = (System.nanoTime() - start) / 1e9;
        Arrays.sort(taken);
        return String.format("{\"seconds\": %.6f, \"acknowledged\": %d, \"p50\": %.3f, \"p99\": %.3f}", seconds,
            acknowledged.get(), taken[count / 2] / 1e6, taken[(int) (count * 0.99)] / 1e6);
    }
}

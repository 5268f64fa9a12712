import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.MemberState;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.protocol.AppendEntryRequest;
import io.openmessaging.storage.dledger.protocol.AppendEntryResponse;
import io.openmessaging.storage.dledger.protocol.LeadershipTransferRequest;
import io.openmessaging.storage.dledger.store.DLedgerStore;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A member of a DLedger group on the loopback address, with the jar of any version up to 0.3.1.2.
 *
 * Arguments: name=value settings of DLedgerConfig (group, selfId, peers, storeBaseDir and so on). Each line of
 * standard input is a command; the answer is a line with a JSON object. The first answer line says that it runs:
 *
 * state: role, term, leader, begin, end, committed. digest FIRST LAST: SHA-256 of these entries.
 * append COUNT SIZE IN_FLIGHT: appends here; returns counts of the answers. transfer ID: transfers leadership.
 * stop: a clean shutdown.
 */
public final class RunServer {
    public static void main(String[] args) throws Exception {
        DLedgerConfig config = new DLedgerConfig();
        for (String arg : args) {
            int equals = arg.indexOf('=');
            set(config, arg.substring(0, equals), arg.substring(equals + 1));
        }
        DLedgerServer server = new DLedgerServer(config);
        Loopback.only(server);
        server.startup();
        answer("{\"started\": true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (line.equals("stop")) {
                server.shutdown();
                answer("{\"stopped\": true}");
                break;
            }
            try {
                answer(obey(server, line.split(" ")));
            } catch (Throwable thrown) {
                answer("{\"error\": \"" + thrown.toString().replaceAll("[\"\\\\\\p{Cntrl}]", " ") + "\"}");
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(String text) {
        System.out.println(text);
        System.out.flush();
    }

    private static void set(DLedgerConfig config, String name, String value) throws Exception {
        String setter = "set" + Character.toUpperCase(name.charAt(0)) + name.substring(1);
        for (Method method : DLedgerConfig.class.getMethods()) {
            if (method.getName().equals(setter)) {
                Class<?> type = method.getParameterTypes()[0];
                if (type == int.class) {
                    method.invoke(config, Integer.parseInt(value));
                } else if (type == long.class) {
                    method.invoke(config, Long.parseLong(value));
                } else if (type == boolean.class) {
                    method.invoke(config, Boolean.parseBoolean(value));
                } else {
                    method.invoke(config, value);
                }
                return;
            }
        }
        throw new IllegalArgumentException("no setting " + name);
    }

    private static String obey(DLedgerServer server, String[] words) throws Exception {
        switch (words[0]) {
            case "state":
                return state(server);
            case "digest":
                return digest(server.getdLedgerStore(), Long.parseLong(words[1]), Long.parseLong(words[2]));
            case "append":
                int size = Integer.parseInt(words[2]);
                return append(server, Integer.parseInt(words[1]), size, Integer.parseInt(words[3]));
            case "transfer":
                return transfer(server, words[1]);
            default:
                throw new IllegalArgumentException("no command " + words[0]);
        }
    }

    private static String state(DLedgerServer server) {
        MemberState state = server.getMemberState();
        DLedgerStore store = server.getdLedgerStore();
        String leader = state.getLeaderId();
        return String.format(
            "{\"role\": \"%s\", \"term\": %d, \"leader\": %s, \"begin\": %d, \"end\": %d, \"committed\": %d}",
            state.getRole(), state.currTerm(), leader == null ? "null" : "\"" + leader + "\"",
            store.getLedgerBeginIndex(), store.getLedgerEndIndex(), store.getCommittedIndex());
    }

    /** SHA-256 over the entries: index, term, pos (64 bits each), body length (32 bits) and body. */
    private static String digest(DLedgerStore store, long first, long last) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (long index = first; index <= last; index++) {
            DLedgerEntry entry = store.get(index);
            ByteBuffer head = ByteBuffer.allocate(28);
            head.putLong(entry.getIndex()).putLong(entry.getTerm()).putLong(entry.getPos());
            head.putInt(entry.getBody().length);
            digest.update(head.array());
            digest.update(entry.getBody());
        }
        StringBuilder hex = new StringBuilder();
        for (byte b : digest.digest()) {
            hex.append(String.format("%02x", b));
        }
        return "{\"digest\": \"" + hex + "\"}";
    }

    private static String append(DLedgerServer server, int count, int size, int inFlight) throws Exception {
        String id = server.getMemberState().getSelfId();
        String group = server.getMemberState().getGroup();
        Semaphore free = new Semaphore(inFlight);
        AtomicInteger acknowledged = new AtomicInteger();
        AtomicInteger refused = new AtomicInteger();
        for (int i = 0; i < count; i++) {
            byte[] body = new byte[size];
            for (int at = 0; at < size; at++) {
                body[at] = (byte) (i * 31 + at * 7 + 1);
            }
            AppendEntryRequest request = new AppendEntryRequest();
            request.setGroup(group);
            request.setRemoteId(id);
            request.setBody(body);
            free.acquire();
            CompletableFuture<AppendEntryResponse> future = server.handleAppend(request);
            future.whenComplete((response, thrown) -> {
                (thrown == null && response.getCode() == 200 ? acknowledged : refused).incrementAndGet();
                free.release();
            });
        }
        free.acquire(inFlight);
        return "{\"acknowledged\": " + acknowledged + ", \"refused\": " + refused + "}";
    }

    private static String transfer(DLedgerServer server, String to) throws Exception {
        LeadershipTransferRequest request = new LeadershipTransferRequest();
        request.setGroup(server.getMemberState().getGroup());
        request.setRemoteId(server.getMemberState().getSelfId());
        request.setTransferId(server.getMemberState().getSelfId());
        request.setTransfereeId(to);
        request.setTerm(server.getMemberState().currTerm());
        return "{\"code\": " + server.handleLeadershipTransfer(request).get().getCode() + "}";
    }
}

import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.store.DLedgerStore;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.dledger.DLedgerCommitLog;

/**
 * A RocketMQ broker, in DLedger mode or not. Its ports are on the loopback address, except the one for slaves and those of 4.9.
 *
 * Argument: its configuration file. Each line of standard input is a command; the answer is a line with a JSON object.
 * The first answer line says that the broker runs:
 *
 * state: brokerRole, maxOffset, behind (bytes), brokerId, inSync (brokers that a master counts); in DLedger mode also role, term, end and committed index.
 * stop: a clean shutdown.
 */
public final class RunBroker {
    public static void main(String[] args) throws Exception {
        BrokerController controller = BrokerStartup.createBrokerController(new String[] {"-c", args[0]});
        DefaultMessageStore store = (DefaultMessageStore) controller.getMessageStore();
        DLedgerServer server = null;
        if (store.getCommitLog() instanceof DLedgerCommitLog) {
            server = ((DLedgerCommitLog) store.getCommitLog()).getdLedgerServer();
            Loopback.only(server);
        }
        BrokerStartup.start(controller);
        answer("{\"started\": true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (line.equals("stop")) {
                controller.shutdown();
                answer("{\"stopped\": true}");
                break;
            }
            try {
                answer(state(controller, store, server));
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

    private static int inSync(DefaultMessageStore store) {
        try {
            return store.getHaService() == null ? 1 : store.getHaService().inSyncReplicasNums(store.getMaxPhyOffset());
        } catch (IncompatibleClassChangeError oldVersion) {
            return 1; // 4.9 does not count them
        }
    }

    private static String state(BrokerController controller, DefaultMessageStore store, DLedgerServer server) {
        String broker = String.format(
            "\"brokerRole\": \"%s\", \"brokerId\": %d, \"maxOffset\": %d, \"behind\": %d, \"inSync\": %d",
            controller.getMessageStoreConfig().getBrokerRole(), controller.getBrokerConfig().getBrokerId(),
            store.getMaxPhyOffset(), store.dispatchBehindBytes(),
            inSync(store));
        if (server == null) {
            return "{" + broker + "}";
        }
        DLedgerStore ledger = server.getdLedgerStore();
        return String.format(
            "{%s, \"role\": \"%s\", \"term\": %d, \"end\": %d, \"committed\": %d}",
            broker, server.getMemberState().getRole(), server.getMemberState().currTerm(),
            ledger.getLedgerEndIndex(), ledger.getCommittedIndex());
    }
}

import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.MemberState;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.store.file.DLedgerMmapFileStore;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Paths;
import java.util.Random;

/**
 * Appends to new stores as a leader, in one thread. Each line of standard input is a round, "FOLDER COUNT SIZE": COUNT
 * bodies of SIZE bytes for a store in that folder. One JSON object a round: the seconds until the last append returned,
 * and until all was flushed.
 */
public class StoreAppend {
    public static void main(String[] args) throws Exception {
        System.out.println("{}");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            System.out.println(round(words[0], Integer.parseInt(words[1]), Integer.parseInt(words[2])));
        }
        Runtime.getRuntime().halt(0); // without shutdown(): the stores are deleted
    }

    private static String round(String folder, int count, int size) throws Exception {
        DLedgerConfig config = new DLedgerConfig();
        config.setSelfId("n0");
        config.setPeers("n0-127.0.0.1:20911");
        config.setStoreBaseDir(Paths.get(folder).toString());
        MemberState state = new MemberState(config);
        state.changeToLeader(state.currTerm());
        DLedgerMmapFileStore store = new DLedgerMmapFileStore(config, state);
        // Not startup(): its threads would continue with a deleted store.
        store.load();
        store.recover();
        byte[] body = new byte[size];
        new Random(size).nextBytes(body);
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            DLedgerEntry entry = new DLedgerEntry();
            entry.setBody(body);
            store.appendAsLeader(entry);
        }
        long appended = System.nanoTime();
        store.flush();
        long flushed = System.nanoTime();
        store.getDataFileList().destroy();
        store.getIndexFileList().destroy();
        return String.format("{\"seconds\": %.6f, \"flushed\": %.6f}", (appended - start) / 1e9,
            (flushed - start) / 1e9);
    }
}

import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.MemberState;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.store.file.DLedgerMmapFileStore;
import java.io.BufferedReader;
import java.io.InputStreamReader;

/** Reads a whole store with get(index), once for each line on standard input; one JSON object a round. */
public class SequentialGet {
    public static void main(String[] args) throws Exception {
        DLedgerConfig config = new DLedgerConfig();
        config.setSelfId("n0");
        config.setStoreBaseDir(args[0]);
        config.setMappedFileSizeForEntryData(Integer.parseInt(args[1]));
        config.setMappedFileSizeForEntryIndex(Integer.parseInt(args[2]));
        // The files must outlive the run, at any age and on a full disk.
        config.setFileReservedHours(24 * 365 * 100);
        config.setEnableDiskForceClean(false);
        DLedgerMmapFileStore store = new DLedgerMmapFileStore(config, new MemberState(config));
        // Not startup(): that would also start the cleaner and the flusher.
        store.load();
        store.recover();

        System.out.printf("{\"entries\": %d}%n", store.getLedgerEndIndex() - store.getLedgerBeginIndex() + 1);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        while (commands.readLine() != null) {
            long start = System.nanoTime();
            long bytes = round(store);
            double seconds = (System.nanoTime() - start) / 1e9;
            System.out.printf("{\"seconds\": %.6f, \"bytes\": %d}%n", seconds, bytes);
        }
        System.exit(0); // without shutdown(), which would write a checkpoint
    }

    private static long round(DLedgerMmapFileStore store) {
        long bytes = 0;
        long end = store.getLedgerEndIndex();
        for (long index = store.getLedgerBeginIndex(); index <= end; index++) {
            DLedgerEntry entry = store.get(index);
            bytes += entry.getBody().length;
        }
        return bytes;
    }
}

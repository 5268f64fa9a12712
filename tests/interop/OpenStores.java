import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.MemberState;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.store.file.DLedgerMmapFileStore;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.security.MessageDigest;

/**
 * Opens a DLedger store for each line of standard input and prints the result of load() and recover().
 *
 * Fields of a line, separated by tabs: the folder of dledger-ID, ID, the sizes of data and index files in bytes, the
 * data folders separated by commas (empty for the default). With one more field, every entry is read and that many
 * entries with bodies "java INDEX" are appended. There is no answer if DLedger ends the process.
 * Compiled once, runs with the jar of any version; reflection calls the methods that differ between them.
 */
public final class OpenStores {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split("\t", -1);
            String answer;
            try {
                answer = open(fields);
            } catch (Throwable thrown) {
                answer = "{\"outcome\": \"throws\", \"message\": \"" + escaped(thrown.toString()) + "\"}";
            }
            System.out.println(answer);
            System.out.flush();
        }
        System.out.flush();
        // Threads of the store may still be running.
        Runtime.getRuntime().halt(0);
    }

    private static String open(String[] fields) throws Exception {
        DLedgerConfig config = new DLedgerConfig();
        config.setGroup("golden");
        config.setSelfId(fields[1]);
        config.setPeers(fields[1] + "-localhost:20911");
        config.setStoreBaseDir(fields[0]);
        config.setMappedFileSizeForEntryData(Integer.parseInt(fields[2]));
        config.setMappedFileSizeForEntryIndex(Integer.parseInt(fields[3]));
        if (!fields[4].isEmpty()) {
            config.setDataStorePath(fields[4]);
        }
        MemberState state = new MemberState(config);
        DLedgerMmapFileStore store = new DLedgerMmapFileStore(config, state);
        store.load();
        store.recover();
        String digest = fields.length > 5 ? ", \"digest\": \"" + digest(store) + "\"" : "";
        if (fields.length > 5) {
            append(store, state, Integer.parseInt(fields[5]));
        }
        return "{\"outcome\": \"opens\", \"beginIndex\": " + beginIndex(store)
            + ", \"endIndex\": " + number(store, "getLedgerEndIndex")
            + ", \"endTerm\": " + number(store, "getLedgerEndTerm")
            + ", \"committedIndex\": " + committedIndex(store, state)
            + ", \"writePos\": " + number(store, "getWritePos")
            + ", \"currTerm\": " + number(state, "currTerm")
            + ", \"voteLeader\": " + (state.currVoteFor() == null ? "null" : "\"" + state.currVoteFor() + "\"")
            + digest + "}";
    }

    /** SHA-256 over all entries: index, term, pos (64 bits each), body length (32 bits) and body. */
    private static String digest(DLedgerMmapFileStore store) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        long end = store.getLedgerEndIndex();
        for (long index = beginIndex(store); index >= 0 && index <= end; index++) {
            DLedgerEntry entry = store.get(index);
            byte[] body = entry.getBody() == null ? new byte[0] : entry.getBody();
            ByteBuffer head = ByteBuffer.allocate(28);
            head.putLong(entry.getIndex()).putLong(entry.getTerm()).putLong(entry.getPos()).putInt(body.length);
            digest.update(head.array());
            digest.update(body);
        }
        StringBuilder hex = new StringBuilder();
        for (byte b : digest.digest()) {
            hex.append(String.format("%02x", b));
        }
        return hex.toString();
    }

    private static void append(DLedgerMmapFileStore store, MemberState state, int count) throws Exception {
        state.changeToLeader(state.currTerm());
        for (int i = 0; i < count; i++) {
            DLedgerEntry entry = new DLedgerEntry();
            entry.setBody(("java " + (store.getLedgerEndIndex() + 1)).getBytes("UTF-8"));
            store.appendAsLeader(entry);
        }
        if (count > 0) {
            store.updateCommittedIndex(state.currTerm(), store.getLedgerEndIndex());
            store.flush();
            Method checkpoint = DLedgerMmapFileStore.class.getDeclaredMethod("persistCheckPoint");
            checkpoint.setAccessible(true);
            checkpoint.invoke(store);
        }
    }

    private static long beginIndex(Object store) throws Exception {
        try {
            return number(store, "getLedgerBeginIndex");
        } catch (NoSuchMethodException since040) {
            return number(store, "getLedgerBeforeBeginIndex") + 1;
        }
    }

    private static long committedIndex(Object store, Object state) throws Exception {
        try {
            return number(store, "getCommittedIndex");
        } catch (NoSuchMethodException since040) {
            return number(state, "getCommittedIndex");
        }
    }

    private static long number(Object target, String getter) throws Exception {
        Method method = target.getClass().getMethod(getter);
        return ((Number) method.invoke(target)).longValue();
    }

    private static String escaped(String text) {
        StringBuilder out = new StringBuilder();
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.toString();
    }
}

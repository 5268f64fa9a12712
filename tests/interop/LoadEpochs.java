import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.remoting.protocol.EpochEntry;
import org.apache.rocketmq.store.ha.autoswitch.EpochFileCache;

/** Reads epoch files of controller mode as AutoSwitchHAService does, for LoadPlainStores. */
final class LoadEpochs {
    /** Compares the epoch files of a slave and a master: words are "epochs", FILE, END, FILE, END. */
    static String compare(String[] words) {
        List<EpochFileCache> caches = new ArrayList<>();
        StringBuilder out = new StringBuilder("{");
        for (int i = 1; i < words.length; i += 2) {
            EpochFileCache cache = new EpochFileCache(words[i]);
            out.append(i == 1 ? "\"slave\": " : ", \"master\": ");
            try {
                cache.initCacheFromFile();
                List<String> epochs = new ArrayList<>();
                for (EpochEntry entry : cache.getAllEntries()) {
                    epochs.add("[" + entry.getEpoch() + ", " + entry.getStartOffset() + "]");
                }
                out.append(epochs);
                caches.add(asSent(cache, Long.parseLong(words[i + 1])));
            } catch (RuntimeException thrown) {
                out.append(LoadPlainStores.quoted(thrown.toString()));
            }
        }
        if (caches.size() == 2) {
            out.append(", \"consistentPoint\": ").append(caches.get(0).findConsistentPoint(caches.get(1)));
        }
        return out + "}";
    }

    /** As AutoSwitchHAClient builds it of what the master sends, which is epochs and where they begin. */
    private static EpochFileCache asSent(EpochFileCache cache, long end) {
        List<EpochEntry> entries = new ArrayList<>();
        for (EpochEntry entry : cache.getAllEntries()) {
            entries.add(new EpochEntry(entry.getEpoch(), entry.getStartOffset()));
        }
        EpochFileCache sent = new EpochFileCache();
        sent.initCacheFromEntries(entries);
        sent.setLastEpochEntryEndOffset(end);
        return sent;
    }
}

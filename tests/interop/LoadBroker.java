import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Runs load() of a RocketMQ message store in DLedger mode on a root and prints the result.
 *
 * Arguments: the root, the node's id, the sizes of CommitLog and ConsumeQueue files in bytes, the slots and units of
 * index files. Runs with the jars of any version; reflection calls the methods that differ between them.
 */
public final class LoadBroker {
    public static void main(String[] args) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + "/commitlog");
        config.setEnableDLegerCommitLog(true);
        config.setdLegerGroup("golden");
        config.setdLegerPeers(args[1] + "-127.0.0.1:31140");
        config.setdLegerSelfId(args[1]);
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[2]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[3]));
        config.setMaxHashSlotNum(Integer.parseInt(args[4]));
        config.setMaxIndexNum(Integer.parseInt(args[5]));
        DefaultMessageStore store = create(config);
        boolean loaded = store.load();
        StringBuilder out = new StringBuilder("{\"loaded\": " + loaded + ", \"queues\": {");
        String separator = "";
        for (Map.Entry<String, Long> queue : queues(store).entrySet()) {
            out.append(separator).append('"').append(queue.getKey()).append("\": ").append(queue.getValue());
            separator = ", ";
        }
        System.out.println(out + "}}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static DefaultMessageStore create(MessageStoreConfig config) throws Exception {
        for (Constructor<?> constructor : DefaultMessageStore.class.getConstructors()) {
            Object[] given = new Object[constructor.getParameterCount()];
            for (int i = 0; i < given.length; i++) {
                Class<?> type = constructor.getParameterTypes()[i];
                if (type == MessageStoreConfig.class) {
                    given[i] = config;
                } else if (type == BrokerConfig.class) {
                    given[i] = new BrokerConfig();
                } else if (type.isAssignableFrom(ConcurrentHashMap.class)) {
                    given[i] = new ConcurrentHashMap<String, Object>();
                }
            }
            return (DefaultMessageStore) constructor.newInstance(given);
        }
        throw new IllegalStateException("no constructor");
    }

    private static Map<String, Long> queues(DefaultMessageStore store) throws Exception {
        Map<String, Long> found = new TreeMap<>();
        Method tables = DefaultMessageStore.class.getMethod("getConsumeQueueTable");
        for (Map.Entry<?, ?> topic : ((Map<?, ?>) tables.invoke(store)).entrySet()) {
            for (Map.Entry<?, ?> queue : ((Map<?, ?>) topic.getValue()).entrySet()) {
                Method max = queue.getValue().getClass().getMethod("getMaxOffsetInQueue");
                found.put(topic.getKey() + "/" + queue.getKey(), ((Number) max.invoke(queue.getValue())).longValue());
            }
        }
        return found;
    }
}

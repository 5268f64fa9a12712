import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.MemberState;
import io.openmessaging.storage.dledger.store.DLedgerStore;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Base64;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageArrivingListener;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.dledger.DLedgerCommitLog;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * The message store of a RocketMQ broker in DLedger mode, with the jars of any version; DLedger listens on the loopback.
 *
 * Arguments: name=value settings of MessageStoreConfig (storePathRootDir, dLegerGroup and so on). Each line of
 * standard input is a command with fields between tabs; the answer is a line with a JSON object. The first answer line
 * says that the store has loaded and runs:
 *
 * state: role, term, begin, end and committed index, dividedOffset, minOffset, maxOffset and behind (bytes).
 * dump FILE: writes every message of every queue, as a consumer receives it, to the file. Returns their number and the
 * physical offsets not found by a lookup by physical offset or by key.
 * queues: minimum and maximum offset of each queue. key TOPIC KEY: the physical offsets that the index has.
 * lead: the steps of a broker that becomes master after everything is committed and dispatched.
 * put COUNT TOPIC QUEUES: puts messages; returns the statuses and the physical offset of the last one.
 * stop: a clean shutdown.
 */
public final class RunStore {
    private static final int QUERY_LIMIT = 1_000_000;

    public static void main(String[] args) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setEnableDLegerCommitLog(true);
        config.setMaxMsgsNumBatch(QUERY_LIMIT);
        for (String arg : args) {
            int equals = arg.indexOf('=');
            set(config, arg.substring(0, equals), arg.substring(equals + 1));
        }
        DefaultMessageStore store = create(config);
        DLedgerCommitLog log = (DLedgerCommitLog) store.getCommitLog();
        Loopback.only(log.getdLedgerServer());
        if (!store.load()) {
            answer("{\"started\": false}");
            Runtime.getRuntime().halt(1);
        }
        store.start();
        answer("{\"started\": true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (line.equals("stop")) {
                store.shutdown();
                answer("{\"stopped\": true}");
                break;
            }
            try {
                answer(obey(store, log, line.split("\t")));
            } catch (Throwable thrown) {
                thrown.printStackTrace();
                answer("{\"error\": \"" + thrown.toString().replaceAll("[\"\\\\\\p{Cntrl}]", " ") + "\"}");
            }
        }
        Runtime.getRuntime().halt(0);
    }

    static void answer(String text) {
        System.out.println(text);
        System.out.flush();
    }

    static void set(MessageStoreConfig config, String name, String value) throws Exception {
        String setter = "set" + Character.toUpperCase(name.charAt(0)) + name.substring(1);
        for (Method method : MessageStoreConfig.class.getMethods()) {
            if (method.getName().equalsIgnoreCase(setter) && method.getParameterCount() == 1) {
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

    static DefaultMessageStore create(MessageStoreConfig config) throws Exception {
        return create(config, new BrokerConfig());
    }

    static DefaultMessageStore create(MessageStoreConfig config, BrokerConfig broker) throws Exception {
        Constructor<?> constructor = kindOf(config).getConstructors()[0];
        Object[] given = new Object[constructor.getParameterCount()];
        for (int i = 0; i < given.length; i++) {
            Class<?> type = constructor.getParameterTypes()[i];
            if (type == MessageStoreConfig.class) {
                given[i] = config;
            } else if (type == BrokerConfig.class) {
                given[i] = broker;
            } else if (type == BrokerStatsManager.class) {
                given[i] = stats();
            } else if (type == MessageArrivingListener.class) {
                Class<?>[] listener = {MessageArrivingListener.class};
                given[i] = Proxy.newProxyInstance(RunStore.class.getClassLoader(), listener, (a, b, c) -> null);
            } else if (type.isAssignableFrom(ConcurrentHashMap.class)) {
                given[i] = new ConcurrentHashMap<String, Object>();
            }
        }
        return (DefaultMessageStore) constructor.newInstance(given);
    }

    /** The store that a broker creates for storeType. */
    private static Class<?> kindOf(MessageStoreConfig config) throws Exception {
        boolean isRocks = Boolean.TRUE.equals(get(config, "isEnableRocksDBStore"));
        return isRocks ? Class.forName("org.apache.rocketmq.store.RocksDBMessageStore") : DefaultMessageStore.class;
    }

    /** What a method of any version says; null if this version does not have it. */
    private static Object get(Object object, String method) throws Exception {
        try {
            return object.getClass().getMethod(method).invoke(object);
        } catch (NoSuchMethodException older) {
            return null;
        }
    }

    /** Before 4.9.3 its constructor has no second parameter. */
    private static BrokerStatsManager stats() throws Exception {
        try {
            return BrokerStatsManager.class.getConstructor(String.class, boolean.class).newInstance("judge", true);
        } catch (NoSuchMethodException older) {
            return BrokerStatsManager.class.getConstructor(String.class).newInstance("judge");
        }
    }

    private static String obey(DefaultMessageStore store, DLedgerCommitLog log, String[] words) throws Exception {
        switch (words[0]) {
            case "state":
                return state(store, log);
            case "dump":
                return dump(store, words[1], true);
            case "queues":
                return queues(store);
            case "key":
                return "{\"offsets\": " + byKey(store, words[1], words[2]) + "}";
            case "lead":
                store.recoverTopicQueueTable();
                return "{}";
            case "put":
                return put(store, Integer.parseInt(words[1]), words[2], Integer.parseInt(words[3]));
            default:
                throw new IllegalArgumentException("no command " + words[0]);
        }
    }

    private static String state(DefaultMessageStore store, DLedgerCommitLog log) {
        MemberState state = log.getdLedgerServer().getMemberState();
        DLedgerStore ledger = log.getdLedgerServer().getdLedgerStore();
        return String.format(
            "{\"role\": \"%s\", \"term\": %d, \"begin\": %d, \"end\": %d, \"committed\": %d, \"dividedOffset\": %d, "
                + "\"minOffset\": %d, \"maxOffset\": %d, \"behind\": %d}",
            state.getRole(), state.currTerm(), ledger.getLedgerBeginIndex(), ledger.getLedgerEndIndex(),
            ledger.getCommittedIndex(), log.getDividedCommitlogOffset(), store.getMinPhyOffset(),
            store.getMaxPhyOffset(), store.dispatchBehindBytes());
    }

    private static Map<String, Set<Integer>> tables(DefaultMessageStore store) throws Exception {
        Map<String, Set<Integer>> found = new TreeMap<>();
        Method tables = DefaultMessageStore.class.getMethod("getConsumeQueueTable");
        for (Map.Entry<?, ?> topic : ((Map<?, ?>) tables.invoke(store)).entrySet()) {
            Set<Integer> queues = new LinkedHashSet<>();
            for (Object queue : ((Map<?, ?>) topic.getValue()).keySet()) {
                queues.add((Integer) queue);
            }
            found.put((String) topic.getKey(), queues);
        }
        return found;
    }

    static String queues(DefaultMessageStore store) throws Exception {
        StringBuilder out = new StringBuilder("{");
        for (Map.Entry<String, Set<Integer>> topic : tables(store).entrySet()) {
            for (int queue : topic.getValue()) {
                long min = store.getMinOffsetInQueue(topic.getKey(), queue);
                long max = store.getMaxOffsetInQueue(topic.getKey(), queue);
                out.append(out.length() > 1 ? ", " : "").append('"').append(topic.getKey()).append('/').append(queue);
                out.append("\": [").append(min).append(", ").append(max).append("]");
            }
        }
        return out + "}";
    }

    static String dump(DefaultMessageStore store, String file, boolean looksForKeys) throws Exception {
        long count = 0;
        Set<Long> missingByOffset = new LinkedHashSet<>();
        Set<Long> missingByKey = new LinkedHashSet<>();
        try (BufferedWriter out = Files.newBufferedWriter(Paths.get(file))) {
            for (Map.Entry<String, Set<Integer>> topic : tables(store).entrySet()) {
                for (int queue : topic.getValue()) {
                    long at = store.getMinOffsetInQueue(topic.getKey(), queue);
                    long max = store.getMaxOffsetInQueue(topic.getKey(), queue);
                    while (at < max) {
                        GetMessageResult result = store.getMessage("judge", topic.getKey(), queue, at, 32, null);
                        for (ByteBuffer buffer : result.getMessageBufferList()) {
                            MessageExt message = MessageDecoder.decode(buffer);
                            if (message == null) {
                                continue; // clients before 5.2 do not know topics of more than 127 bytes
                            }
                            out.write(line(topic.getKey(), queue, message));
                            if (!isFoundByOffset(store, message)) {
                                missingByOffset.add(message.getCommitLogOffset());
                            }
                            if (looksForKeys && !isFoundByKeys(store, message)) {
                                missingByKey.add(message.getCommitLogOffset());
                            }
                            count++;
                        }
                        result.release();
                        if (result.getNextBeginOffset() <= at) {
                            throw new IllegalStateException(topic.getKey() + "/" + queue + " at " + at + " of " + max
                                + ": " + result.getStatus());
                        }
                        at = result.getNextBeginOffset();
                    }
                }
            }
        }
        return String.format(
            "{\"count\": %d, \"missingByOffset\": %s, \"missingByKey\": %s}", count, missingByOffset, missingByKey);
    }

    /** Fields between tabs: the queue that the message was read from, then its fields. */
    private static String line(String topic, int queue, MessageExt message) {
        Map<String, String> pairs = message.getProperties() == null ? new TreeMap<>() : message.getProperties();
        String properties = MessageDecoder.messageProperties2String(pairs);
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        Object[] fields = {
            topic, queue, message.getTopic(), message.getQueueId(), message.getQueueOffset(),
            message.getCommitLogOffset(), message.getStoreSize(), message.getFlag(), message.getSysFlag(),
            message.getBornTimestamp(), message.getStoreTimestamp(), base64(body),
            base64(properties.getBytes(StandardCharsets.UTF_8))};
        StringBuilder out = new StringBuilder();
        for (Object field : fields) {
            out.append(out.length() > 0 ? "\t" : "").append(field);
        }
        return out.append('\n').toString();
    }

    private static String base64(byte[] data) {
        return Base64.getEncoder().encodeToString(data);
    }

    private static boolean isFoundByOffset(DefaultMessageStore store, MessageExt message) {
        MessageExt found = store.lookMessageByOffset(message.getCommitLogOffset());
        return found != null && found.getTopic().equals(message.getTopic())
            && found.getQueueId() == message.getQueueId() && found.getQueueOffset() == message.getQueueOffset();
    }

    private static boolean isFoundByKeys(DefaultMessageStore store, MessageExt message) {
        Set<String> keys = new HashSet<>();
        if (message.getProperty("UNIQ_KEY") != null) {
            keys.add(message.getProperty("UNIQ_KEY"));
        }
        if (message.getKeys() != null) {
            for (String key : message.getKeys().split(" ")) {
                if (!key.isEmpty()) {
                    keys.add(key);
                }
            }
        }
        for (String key : keys) {
            if (!byKey(store, message.getTopic(), key).contains(message.getCommitLogOffset())) {
                return false;
            }
        }
        return true;
    }

    static Set<Long> byKey(DefaultMessageStore store, String topic, String key) {
        Set<Long> offsets = new LinkedHashSet<>();
        QueryMessageResult result = store.queryMessage(topic, key, QUERY_LIMIT, 0, Long.MAX_VALUE);
        for (ByteBuffer buffer : result.getMessageBufferList()) {
            offsets.add(MessageDecoder.decode(buffer).getCommitLogOffset());
        }
        result.release();
        return offsets;
    }

    static String put(DefaultMessageStore store, int count, String topic, int queues) throws Exception {
        Method put = null;
        for (Method method : DefaultMessageStore.class.getMethods()) {
            if (method.getName().equals("putMessage")) {
                put = method;
            }
        }
        Class<?> kind = put.getParameterTypes()[0];
        Map<String, Integer> statuses = new TreeMap<>();
        long last = -1;
        for (int i = 0; i < count; i++) {
            MessageExt message = (MessageExt) kind.getConstructor().newInstance();
            message.setTopic(topic);
            message.setBody(("java " + i).getBytes(StandardCharsets.UTF_8));
            message.setKeys("java" + i);
            message.setTags("java");
            message.setQueueId(i % queues);
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(new InetSocketAddress("127.0.0.1", 1));
            message.setStoreHost(new InetSocketAddress("127.0.0.1", 2));
            String properties = MessageDecoder.messageProperties2String(message.getProperties());
            kind.getMethod("setPropertiesString", String.class).invoke(message, properties);
            PutMessageResult result = (PutMessageResult) put.invoke(store, message);
            statuses.merge("\"" + result.getPutMessageStatus() + "\"", 1, Integer::sum);
            last = result.isOk() ? result.getAppendMessageResult().getWroteOffset() : last;
        }
        return "{\"statuses\": " + statuses.toString().replace('=', ':') + ", \"last\": " + last + "}";
    }
}

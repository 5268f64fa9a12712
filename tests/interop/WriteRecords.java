import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.broker.pop.PopConsumerRecord;
import org.apache.rocketmq.broker.pop.PopConsumerRocksdbStore;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * The popped messages and the timers that a broker keeps in a RocksDB. Argument: the storePathRootDir.
 *
 * Each line of standard input is a command with fields between blanks; the answer is a line with a JSON object:
 *
 * pop TOPIC GROUP QUEUE OFFSET POPTIME INVISIBLE RETRY, ack with the same fields. timer DUE KEY OFFSET SIZE,
 * delivered DUE: from 5.4.0 on. read: what RocketMQ's own scans find. close.
 */
public final class WriteRecords {
    private static final String TIMERS = "org.apache.rocketmq.store.timer.rocksdb.TimerRocksDBRecord";
    private static final String STORAGE = "org.apache.rocketmq.store.rocksdb.MessageRocksDBStorage";
    private static PopConsumerRocksdbStore pops;
    private static Object timers;

    public static void main(String[] args) throws Exception {
        pops = new PopConsumerRocksdbStore(Paths.get(args[0], "kvStore").toString());
        pops.start();
        try {
            MessageStoreConfig config = new MessageStoreConfig();
            config.setStorePathRootDir(args[0]);
            timers = Class.forName(STORAGE).getConstructor(MessageStoreConfig.class).newInstance(config);
        } catch (ClassNotFoundException older) {
            timers = null;
        }
        answer("{\"started\": true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                answer(obey(line.split(" ")));
            } catch (Throwable thrown) {
                thrown.printStackTrace();
                answer("{\"error\": \"" + thrown.getClass() + "\"}");
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(String text) {
        System.out.println(text);
        System.out.flush();
    }

    private static String obey(String[] words) throws Exception {
        switch (words[0]) {
            case "pop":
                pops.writeRecords(Collections.singletonList(record(words)));
                return "{}";
            case "ack":
                pops.deleteRecords(Collections.singletonList(record(words)));
                return "{}";
            case "timer":
                Object timer = Class.forName(TIMERS)
                    .getConstructor(long.class, String.class, long.class, int.class, long.class, MessageExt.class)
                    .newInstance(Long.parseLong(words[1]), words[2], Long.parseLong(words[3]),
                        Integer.parseInt(words[4]), 0L, null);
                call("writeRecordsForTimer", family(), Collections.singletonList(timer));
                return "{}";
            case "delivered":
                Object key = timers.getClass().getField("TIMELINE_CHECK_POINT").get(null);
                call("writeCheckPointForTimer", family(), key, Long.parseLong(words[1]));
                return "{}";
            case "read":
                return "{\"pops\": " + readPops() + ", \"timers\": " + readTimers() + "}";
            case "close":
                pops.shutdown();
                if (timers != null) {
                    call("shutdown");
                }
                return "{}";
            default:
                throw new IllegalArgumentException("no command " + words[0]);
        }
    }

    private static PopConsumerRecord record(String[] words) {
        return new PopConsumerRecord(Long.parseLong(words[5]), words[2], words[1], Integer.parseInt(words[3]),
            Integer.parseInt(words[7]), Long.parseLong(words[6]), Long.parseLong(words[4]), "attempt");
    }

    private static Object family() throws Exception {
        return timers.getClass().getField("TIMER_COLUMN_FAMILY").get(null);
    }

    private static Object call(String name, Object... given) throws Exception {
        for (Method method : timers.getClass().getMethods()) {
            if (method.getName().equals(name)) {
                return method.invoke(timers, given);
            }
        }
        throw new NoSuchMethodException(name);
    }

    private static String readPops() {
        List<String> found = new ArrayList<>();
        for (PopConsumerRecord each : pops.scanExpiredRecords(0, Long.MAX_VALUE, 1000)) {
            found.add(String.format("[\"%s\", \"%s\", %d, %d, %d, %d]", each.getTopicId(), each.getGroupId(),
                each.getQueueId(), each.getOffset(), each.getPopTime(), each.getVisibilityTimeout()));
        }
        return found.toString();
    }

    private static String readTimers() throws Exception {
        List<String> found = new ArrayList<>();
        Object records = timers == null ? Collections.emptyList()
            : call("scanRecordsForTimer", family(), 1L, Long.MAX_VALUE >> 8, 1000, null);
        for (Object each : (List<?>) records) {
            Class<?> kind = each.getClass();
            found.add(String.format("[%s, \"%s\", %s, %s]", kind.getMethod("getDelayTime").invoke(each),
                kind.getMethod("getUniqKey").invoke(each), kind.getMethod("getOffsetPy").invoke(each),
                kind.getMethod("getSizePy").invoke(each)));
        }
        return found.toString();
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Lets message stores of RocketMQ brokers without DLedger load() roots, one after the other in one process, with the jars
 * of any version. They are not started.
 *
 * Each line of standard input has settings of MessageStoreConfig, name=value, between tabs. The response is a line with a
 * JSON object: whether load() succeeds, maxOffset, minOffset, dispatchFrom (where start() would begin to dispatch) and the
 * maximum offset of each queue; or the error that load() throws. The setting enableControllerMode=true is of BrokerConfig;
 * as a broker of controller mode at its start, the store is then no master.
 *
 * A line "epochs FILE END FILE END" has two epoch files and the ends of their logs: the response has the epochs of each,
 * or the error, and the consistentPoint of the first with the second. From 5.1 on.
 */
public final class LoadPlainStores {
    public static void main(String[] args) throws Exception {
        RunStore.answer("{\"started\": true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                String[] words = line.split("\t");
                RunStore.answer(words[0].equals("epochs") ? LoadEpochs.compare(words) : load(words));
            } catch (Throwable thrown) {
                RunStore.answer("{\"error\": " + quoted(thrown.toString()) + "}");
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static String load(String[] settings) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setHaListenPort(0);
        BrokerConfig broker = new BrokerConfig();
        for (String setting : settings) {
            int equals = setting.indexOf('=');
            if (setting.equals("enableControllerMode=true")) {
                broker.setEnableControllerMode(true);
                config.setBrokerRole(BrokerRole.SLAVE);
            } else {
                RunStore.set(config, setting.substring(0, equals), setting.substring(equals + 1));
            }
        }
        DefaultMessageStore store = RunStore.create(config, broker);
        if (!store.load()) {
            return "{\"loaded\": false}";
        }
        Map<String, Long> queues = new TreeMap<>();
        long highest = Math.max(store.getMinPhyOffset(), 0);
        Method tables = DefaultMessageStore.class.getMethod("getConsumeQueueTable");
        for (Map.Entry<?, ?> topic : ((Map<?, ?>) tables.invoke(store)).entrySet()) {
            for (Map.Entry<?, ?> queue : ((Map<?, ?>) topic.getValue()).entrySet()) {
                Object found = queue.getValue();
                queues.put(topic.getKey() + "/" + queue.getKey(), number(found, "getMaxOffsetInQueue"));
                highest = Math.max(highest, number(found, "getMaxPhysicOffset"));
            }
        }
        boolean fromQueues = hasScheduleService(store);
        StringBuilder out = new StringBuilder("{\"loaded\": true, \"maxOffset\": " + store.getMaxPhyOffset());
        out.append(", \"minOffset\": ").append(store.getMinPhyOffset());
        out.append(", \"dispatchFrom\": ").append(fromQueues ? highest : store.getCommitLog().getConfirmOffset());
        out.append(", \"queues\": {");
        String separator = "";
        for (Map.Entry<String, Long> queue : queues.entrySet()) {
            out.append(separator).append(quoted(queue.getKey())).append(": ").append(queue.getValue());
            separator = ", ";
        }
        return out + "}}";
    }

    /** Stores of 4.x have it, and dispatch from the end of the queues on. */
    private static boolean hasScheduleService(DefaultMessageStore store) {
        for (Method method : store.getClass().getMethods()) {
            if (method.getName().equals("getScheduleMessageService")) {
                return true;
            }
        }
        return false;
    }

    private static long number(Object queue, String getter) throws Exception {
        return ((Number) queue.getClass().getMethod(getter).invoke(queue)).longValue();
    }

    static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each < ' ' || each > '~' || each == '"' || each == '\\') {
                out.append(String.format("\\u%04x", (int) each));
            } else {
                out.append(each);
            }
        }
        return out.append('"').toString();
    }
}

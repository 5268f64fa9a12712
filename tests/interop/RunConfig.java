import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.config.AbstractRocksDBStorage;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Reads and writes the files in config/ of a root with RocketMQ's own classes.
 *
 * Each line of standard input is a command with fields between tabs; the answer is a line with a JSON object:
 *
 * read ROOT: whether each file loads, and its content: topics (readQueueNums, writeQueueNums, perm), the counter of
 * their version, groups, consumerOffsets and delayOffsets. write ROOT: the same, then adds a topic, a group and
 * offsets and writes all files. Fields NAME=VALUE after ROOT are settings of the broker and its store.
 */
public final class RunConfig {
    public static void main(String[] args) throws Exception {
        System.out.println("{\"started\": true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            BrokerController broker = broker(words);
            AbstractRocksDBStorage storage = storage(broker);
            if (storage != null) {
                storage.start();
            }
            Map<String, Object> found = read(broker);
            if (words[0].equals("write")) {
                write(broker);
            }
            broker.getTopicConfigManager().stop();
            broker.getSubscriptionGroupManager().stop();
            broker.getConsumerOffsetManager().stop();
            if (storage != null) {
                storage.shutdown();
            }
            System.out.println(JSON.toJSONString(found, SerializerFeature.WriteNonStringKeyAsString));
            System.out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    /** The RocksDB of configManagerVersion=v2, which a broker opens before it loads from it; null without. */
    private static AbstractRocksDBStorage storage(BrokerController broker) throws Exception {
        Field field = BrokerController.class.getDeclaredField("configStorage");
        field.setAccessible(true);
        return (AbstractRocksDBStorage) field.get(broker);
    }

    private static BrokerController broker(String[] words) {
        Properties settings = new Properties();
        for (int i = 2; i < words.length; i++) {
            String[] setting = words[i].split("=");
            settings.setProperty(setting[0], setting[1]);
        }
        BrokerConfig brokerConfig = new BrokerConfig();
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(settings, brokerConfig);
        MixAll.properties2Object(settings, config);
        config.setStorePathRootDir(words[1]);
        config.setStorePathCommitLog(words[1] + "/commitlog");
        BrokerController broker =
            new BrokerController(brokerConfig, new NettyServerConfig(), new NettyClientConfig(), config);
        // Only asked for the path of the delay offsets; a real store would open the log.
        Class<?>[] store = {MessageStore.class};
        broker.setMessageStore(
            (MessageStore) Proxy.newProxyInstance(RunConfig.class.getClassLoader(), store, (proxy, method, given) -> {
                if (method.getName().equals("getMessageStoreConfig")) {
                    return config;
                }
                if (method.getName().equals("getStateMachineVersion")) {
                    return 0L;
                }
                throw new UnsupportedOperationException(method.getName());
            }));
        return broker;
    }

    private static Map<String, Object> read(BrokerController broker) {
        Map<String, Object> found = new LinkedHashMap<>();
        // The classes add system topics and groups; only the content of the files is kept below.
        broker.getTopicConfigManager().getTopicConfigTable().clear();
        broker.getSubscriptionGroupManager().getSubscriptionGroupTable().clear();
        found.put("topics.json", broker.getTopicConfigManager().load());
        found.put("consumerOffset.json", broker.getConsumerOffsetManager().load());
        found.put("subscriptionGroup.json", broker.getSubscriptionGroupManager().load());
        found.put("delayOffset.json", broker.getScheduleMessageService().loadWhenSyncDelayOffset());
        Map<String, Object> topics = new TreeMap<>();
        for (TopicConfig topic : broker.getTopicConfigManager().getTopicConfigTable().values()) {
            int[] numbers = {topic.getReadQueueNums(), topic.getWriteQueueNums(), topic.getPerm()};
            topics.put(topic.getTopicName(), numbers);
        }
        found.put("topics", topics);
        found.put("topicsVersion", broker.getTopicConfigManager().getDataVersion().getCounter().get());
        found.put("groups", broker.getSubscriptionGroupManager().getSubscriptionGroupTable().keySet());
        found.put("consumerOffsets", new TreeMap<>(broker.getConsumerOffsetManager().getOffsetTable()));
        found.put("delayOffsets", new TreeMap<>(broker.getScheduleMessageService().getOffsetTable()));
        return found;
    }

    private static void write(BrokerController broker) {
        TopicConfig topic = new TopicConfig("JavaTopic", 6, 5, 6);
        broker.getTopicConfigManager().updateTopicConfig(topic);
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName("JavaGroup");
        broker.getSubscriptionGroupManager().updateSubscriptionGroupConfig(group);
        broker.getConsumerOffsetManager().commitOffset("host", "JavaGroup", "JavaTopic", 3, 77);
        broker.getConsumerOffsetManager().persist();
        broker.getScheduleMessageService().getOffsetTable().put(5, 21L);
        broker.getScheduleMessageService().persist();
    }
}

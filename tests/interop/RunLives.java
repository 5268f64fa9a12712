import com.alibaba.fastjson.JSON;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.timer.Slot;
import org.apache.rocketmq.store.timer.TimerLog;
import org.apache.rocketmq.store.timer.TimerMessageStore;
import org.apache.rocketmq.store.timer.TimerWheel;

/**
 * A name server, a broker and clients that give one message each kind of life: prepared, delayed, timed, retried, dead,
 * popped.
 *
 * Arguments: the name server's port, the broker's configuration file, its port. One line of output, a JSON object: the
 * fate, uniqKey and offsetMsgId of each message by its key, and what the broker's timer wheel has in the end.
 */
public final class RunLives {
    private static final String NAMES = "127.0.0.1:";
    private static final Map<String, Object> FATES = new TreeMap<>();
    private static final Set<String> CHECKED = ConcurrentHashMap.newKeySet();

    public static void main(String[] args) {
        try {
            run(args);
        } catch (Throwable thrown) {
            thrown.printStackTrace();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(String[] args) throws Exception {
        NettyServerConfig netty = new NettyServerConfig();
        netty.setBindAddress("127.0.0.1");
        netty.setListenPort(Integer.parseInt(args[0]));
        NamesrvController names = new NamesrvController(new NamesrvConfig(), netty);
        names.initialize();
        names.start();
        BrokerController broker = BrokerStartup.createBrokerController(new String[] {"-c", args[1]});
        BrokerStartup.start(broker);
        TransactionMQProducer producer = producer(NAMES + args[0]);
        for (String topic : new String[] {"Orders", "Retries", "Pops", "Delays"}) {
            createTopic(producer, topic);
        }
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        consumers.add(consumer(NAMES + args[0], "buyers", "Orders"));
        consumers.add(consumer(NAMES + args[0], "retriers", "Retries"));
        Thread.sleep(3000);
        sendAll(producer);
        pops(producer, NAMES + args[2]);
        Thread.sleep(Long.parseLong(args[3]));
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        remember(producer.sendMessageInTransaction(message("Orders", "pending-1"), null), "pending-1");
        remember(producer.send(message("Orders", "unread-1")), "unread-1");
        Thread.sleep(500);
        Map<String, Object> said = new LinkedHashMap<>();
        said.put("messages", FATES);
        said.put("timers", timers((DefaultMessageStore) broker.getMessageStore()));
        producer.shutdown();
        broker.shutdown();
        System.out.println(JSON.toJSONString(said));
        System.out.flush();
    }

    private static Message message(String topic, String key) {
        return new Message(topic, key.substring(0, key.indexOf('-')), key, ("body of " + key).getBytes());
    }

    private static void remember(SendResult result, String key) {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("uniqKey", result.getMsgId());
        found.put("offsetMsgId", result.getOffsetMsgId());
        FATES.put(key, found);
    }

    private static void createTopic(TransactionMQProducer producer, String topic) throws Exception {
        for (int tries = 0; ; tries++) {
            try {
                producer.createTopic("TBW102", topic, 1, Collections.emptyMap());
                return;
            } catch (Exception noBroker) {
                if (tries > 60) {
                    throw noBroker;
                }
                Thread.sleep(500);
            }
        }
    }

    private static TransactionMQProducer producer(String names) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("sellers");
        producer.setNamesrvAddr(names);
        producer.setPollNameServerInterval(1000);
        producer.setHeartbeatBrokerInterval(1000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                String key = message.getKeys();
                if (key.startsWith("committed")) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }
                return key.startsWith("rolled") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                if (message.getKeys().startsWith("checked") && !CHECKED.add(message.getKeys())) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }
                return LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        return producer;
    }

    private static DefaultMQPushConsumer consumer(String names, String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(names);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(1);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt each : messages) {
                boolean fails = each.getKeys().startsWith("dead")
                    || each.getKeys().startsWith("retried") && each.getReconsumeTimes() == 0;
                if (fails) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private static void sendAll(TransactionMQProducer producer) throws Exception {
        for (String key : new String[] {"plain-1", "plain-2"}) {
            remember(producer.send(message("Orders", key)), key);
        }
        for (String key : new String[] {"retried-1", "dead-1"}) {
            remember(producer.send(message("Retries", key)), key);
        }
        for (String key : new String[] {"committed-1", "rolled-1", "checked-1", "discarded-1"}) {
            remember(producer.sendMessageInTransaction(message("Orders", key), null), key);
        }
        Message delayed = message("Delays", "delayed-1");
        delayed.setDelayTimeLevel(1);
        remember(producer.send(delayed), "delayed-1");
        delayed = message("Delays", "delayed-2");
        delayed.setDelayTimeLevel(5);
        remember(producer.send(delayed), "delayed-2");
        long later = System.currentTimeMillis() + 3_600_000;
        for (String key : new String[] {"timed-1", "timed-2", "timed-3"}) {
            Message timed = message("Delays", key);
            timed.setDeliverTimeMs(key.equals("timed-1") ? System.currentTimeMillis() + 2000 : later);
            remember(producer.send(timed), key);
        }
        Message deletes = message("Delays", "deletes-1");
        deletes.setDeliverTimeMs(later);
        Map<?, ?> deleted = (Map<?, ?>) FATES.get("timed-3");
        MessageAccessor.putProperty(deletes, MessageConst.PROPERTY_TIMER_DEL_UNIQKEY, "Delays_" + deleted.get("uniqKey"));
        remember(producer.send(deletes), "deletes-1");
        Message light = message("Orders", "light-1");
        MessageAccessor.putProperty(light, MessageConst.PROPERTY_INNER_MULTI_DISPATCH, "%LMQ%a,%LMQ%b");
        remember(producer.send(light), "light-1");
        for (int i = 1; i <= 5; i++) {
            remember(producer.send(message("Pops", "popped-" + i)), "popped-" + i);
        }
    }

    /** popped-1 is acknowledged, popped-2 waits for it, popped-3 is not acknowledged in time; of 4 and 5 the last is. */
    private static void pops(TransactionMQProducer producer, String broker) throws Exception {
        MQClientAPIImpl api = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
        ack(api, broker, pop(api, broker, 1, 60_000).get(0));
        pop(api, broker, 1, 3_600_000);
        pop(api, broker, 1, 3_000);
        ack(api, broker, pop(api, broker, 2, 3_600_000).get(1));
    }

    private static List<MessageExt> pop(MQClientAPIImpl api, String broker, int count, long invisible) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup("poppers");
        header.setTopic("Pops");
        header.setQueueId(0);
        header.setMaxMsgNums(count);
        header.setInvisibleTime(invisible);
        header.setPollTime(5000);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(0);
        CompletableFuture<PopResult> result = new CompletableFuture<>();
        api.popMessageAsync("broker", broker, header, 10_000, new PopCallback() {
            @Override
            public void onSuccess(PopResult found) {
                result.complete(found);
            }

            @Override
            public void onException(Throwable thrown) {
                result.completeExceptionally(thrown);
            }
        });
        List<MessageExt> found = result.get(20, TimeUnit.SECONDS).getMsgFoundList();
        if (found == null || found.size() != count) {
            throw new IllegalStateException("popped " + result.get());
        }
        return found;
    }

    private static void ack(MQClientAPIImpl api, String broker, MessageExt message) throws Exception {
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup("poppers");
        header.setTopic("Pops");
        header.setQueueId(message.getQueueId());
        header.setOffset(message.getQueueOffset());
        header.setExtraInfo(message.getProperty(MessageConst.PROPERTY_POP_CK));
        CompletableFuture<AckResult> result = new CompletableFuture<>();
        api.ackMessageAsync(broker, 10_000, new AckCallback() {
            @Override
            public void onSuccess(AckResult done) {
                result.complete(done);
            }

            @Override
            public void onException(Throwable thrown) {
                result.completeExceptionally(thrown);
            }
        }, header);
        result.get(20, TimeUnit.SECONDS);
    }

    /** The units of all slots that are still to be read, as the broker's dequeue follows them. */
    private static List<Map<String, Object>> timers(DefaultMessageStore store) throws Exception {
        TimerMessageStore timers = store.getTimerMessageStore();
        TimerWheel wheel = (TimerWheel) field(timers, "timerWheel");
        TimerLog log = (TimerLog) field(timers, "timerLog");
        long now = (long) field(timers, "currReadTimeMs");
        int slots = (int) field(timers, "slotsTotal");
        List<Map<String, Object>> found = new ArrayList<>();
        for (int i = 0; i < slots * 2; i++) {
            Slot slot = wheel.getSlot(now + i * 1000L);
            for (long at = slot.timeMs == -1 ? -1 : slot.lastPos; at != -1; ) {
                SelectMappedBufferResult unit = log.getTimerMessage(at);
                ByteBuffer buffer = unit.getByteBuffer();
                buffer.getInt();
                long previous = buffer.getLong();
                Map<String, Object> row = new LinkedHashMap<>();
                row.put("position", at);
                row.put("magic", buffer.getInt());
                long written = buffer.getLong();
                row.put("deliverTime", written + buffer.getInt());
                row.put("commitLogOffset", buffer.getLong());
                row.put("size", buffer.getInt());
                unit.release();
                found.add(row);
                at = previous;
            }
        }
        return found;
    }

    private static Object field(Object owner, String name) throws Exception {
        for (Class<?> type = owner.getClass(); type != null; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (field.getName().equals(name)) {
                    field.setAccessible(true);
                    return field.get(owner);
                }
            }
        }
        throw new NoSuchFieldException(name);
    }
}

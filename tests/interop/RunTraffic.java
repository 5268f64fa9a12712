import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Map;
import java.util.Queue;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The applications of an example shop: one producer of several topics, and consumers.
 *
 * Arguments: the name server's port and a seed. Each line of standard input is a command; the answer is a line with a
 * JSON object. The first answer line says that all run:
 *
 * rate N: N new messages a second from here. consume GROUP FAILING TOPIC...: starts a consumer group that rejects one
 * of FAILING messages (0: none) at the first attempt. leave GROUP: ends it. progress: counts of messages made,
 * acknowledged and given to consumers, and of repeated sends after a failure. end FILE: writes topics, queue ids, queue
 * offsets, message ids and UNIQ_KEYs of all acknowledged messages to the file.
 */
public final class RunTraffic {
    private static final String[] WORDS =
        "order customer parcel street invoice basket delivery article discount reminder colour small large".split(" ");
    private static final Queue<String> ACKNOWLEDGED = new ConcurrentLinkedQueue<>();
    private static final AtomicInteger COUNT = new AtomicInteger();
    private static final AtomicInteger AGAIN = new AtomicInteger();
    private static final AtomicInteger CONSUMED = new AtomicInteger();
    private static final Map<String, DefaultMQPushConsumer> CONSUMERS = new TreeMap<>();
    private static final ScheduledExecutorService CLOCK = Executors.newSingleThreadScheduledExecutor();
    private static final int TICK = 10;
    private static volatile double rate;
    private static volatile int made;
    private static double due;

    public static void main(String[] args) throws Exception {
        String names = "127.0.0.1:" + args[0];
        Random chance = new Random(Long.parseLong(args[1]));
        DefaultMQProducer producer = new DefaultMQProducer("shop");
        producer.setNamesrvAddr(names);
        producer.setPollNameServerInterval(1000);
        producer.start();
        CLOCK.scheduleAtFixedRate(() -> produce(producer, chance), TICK, TICK, TimeUnit.MILLISECONDS);
        answer("{\"started\": true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null && !line.equals("stop"); line = lines.readLine()) {
            try {
                answer(obey(names, line.split("\t")));
            } catch (Throwable thrown) {
                answer("{\"error\": \"" + thrown.toString().replaceAll("[\"\\\\\\p{Cntrl}]", " ") + "\"}");
            }
        }
        answer("{\"stopped\": true}");
        Runtime.getRuntime().halt(0);
    }

    private static void answer(String text) {
        System.out.println(text);
        System.out.flush();
    }

    private static String obey(String names, String[] words) throws Exception {
        switch (words[0]) {
            case "rate":
                rate = Double.parseDouble(words[1]);
                return "{}";
            case "consume":
                CONSUMERS.put(words[1], consumer(names, words));
                return "{}";
            case "leave":
                CONSUMERS.remove(words[1]).shutdown();
                return "{}";
            case "progress":
                return "{\"made\": " + made + ", \"acknowledged\": " + COUNT + ", \"again\": " + AGAIN + ", \"consumed\": "
                    + CONSUMED + "}";
            case "end":
                try (BufferedWriter out = Files.newBufferedWriter(Paths.get(words[1]))) {
                    for (String line : ACKNOWLEDGED) {
                        out.write(line);
                    }
                }
                return "{}";
            default:
                throw new IllegalArgumentException("no command " + words[0]);
        }
    }

    private static void produce(DefaultMQProducer producer, Random chance) {
        for (due += rate * TICK / 1000 * -Math.log(1 - chance.nextDouble()); due >= 1; due--) {
            send(producer, message(++made, chance));
        }
    }

    private static Message message(int number, Random chance) {
        double which = chance.nextDouble();
        if (which < 0.5) {
            return message("OrderTopic", new String[] {"created", "paid", "sent", "returned"}, "order-" + number, chance);
        } else if (which < 0.75) {
            return message("PaymentTopic", new String[] {"card", "transfer"}, "order-" + number, chance);
        } else if (which < 0.95) {
            return message("LogTopic", new String[] {"info", "warning"}, "", chance);
        }
        return message("AlertTopic", new String[] {"alert"}, "", chance);
    }

    private static Message message(String topic, String[] tags, String keys, Random chance) {
        int customer = chance.nextInt(500);
        StringBuilder body = new StringBuilder("{\"customer\": \"c-" + customer + "\", \"text\": \"");
        for (int left = 5 + (int) (chance.nextDouble() * chance.nextDouble() * 200); left > 0; left--) {
            body.append(WORDS[chance.nextInt(WORDS.length)]).append(' ');
        }
        String tag = tags[chance.nextInt(tags.length)];
        return new Message(topic, tag, keys, body.append("\"}").toString().getBytes(StandardCharsets.UTF_8));
    }

    /** Sends until acknowledged. A retry after a failure or timeout keeps its UNIQ_KEY. */
    private static void send(DefaultMQProducer producer, Message message) {
        try {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    if (result.getSendStatus() == SendStatus.SEND_OK) {
                        ACKNOWLEDGED.add(message.getTopic() + "\t" + result.getMessageQueue().getQueueId() + "\t"
                            + result.getQueueOffset() + "\t" + result.getOffsetMsgId() + "\t" + result.getMsgId() + "\n");
                        COUNT.getAndIncrement();
                    } else {
                        sendAgain(producer, message);
                    }
                }

                @Override
                public void onException(Throwable reason) {
                    sendAgain(producer, message);
                }
            });
        } catch (Exception refused) {
            sendAgain(producer, message);
        }
    }

    private static void sendAgain(DefaultMQProducer producer, Message message) {
        AGAIN.getAndIncrement();
        CLOCK.schedule(() -> send(producer, message), 500, TimeUnit.MILLISECONDS);
    }

    private static DefaultMQPushConsumer consumer(String names, String[] words) throws Exception {
        int failing = Integer.parseInt(words[2]);
        AtomicInteger seen = new AtomicInteger();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(words[1]);
        consumer.setNamesrvAddr(names);
        consumer.setInstanceName(words[1]);
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        for (int i = 3; i < words.length; i++) {
            consumer.subscribe(words[i], "*");
        }
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            CONSUMED.addAndGet(messages.size());
            for (MessageExt each : messages) {
                boolean isFirst = each.getReconsumeTimes() == 0;
                if (failing > 0 && isFirst && seen.incrementAndGet() % failing == 0) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }
}

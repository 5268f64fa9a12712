import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;

/**
 * A RocketMQ name server on the loopback address, with a producer and a consumer.
 *
 * Argument: the name server's port. Each line of standard input is a command; the answer is a line with a JSON object.
 * The first answer line says that all run:
 *
 * send TOPIC: sends one message; returns its status.
 * load TOPIC THREADS PAUSE: threads send messages with bodies "NUMBER", with pauses of so many milliseconds.
 * progress: the number of acknowledged ones. end FILE: ends the load and writes numbers, queue ids, queue offsets and
 * message ids of acknowledged messages to the file; returns how many were acknowledged and how many were not.
 * max TOPIC: the maximum offset of each queue. consume TOPIC FILE: writes every message of the topic to the file.
 * committed GROUP TOPIC: the offset of each queue at which a consumer group continues.
 */
public final class RunClients {
    private static final ConcurrentLinkedQueue<String> ACKNOWLEDGED = new ConcurrentLinkedQueue<>();
    private static final AtomicInteger NUMBER = new AtomicInteger();
    private static final AtomicInteger COUNT = new AtomicInteger();
    private static final AtomicInteger UNKNOWN = new AtomicInteger();
    private static final List<Thread> THREADS = new ArrayList<>();
    private static volatile boolean ends;

    public static void main(String[] args) throws Exception {
        NettyServerConfig netty = new NettyServerConfig();
        netty.setBindAddress("127.0.0.1");
        netty.setListenPort(Integer.parseInt(args[0]));
        NamesrvController names = new NamesrvController(new NamesrvConfig(), netty);
        if (!names.initialize()) {
            throw new IllegalStateException("the name server does not start");
        }
        names.start();
        DefaultMQProducer producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr("127.0.0.1:" + args[0]);
        // A retry could write a message twice without notice.
        producer.setRetryTimesWhenSendFailed(0);
        producer.setPollNameServerInterval(1000);
        producer.start();
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("consumers");
        consumer.setNamesrvAddr("127.0.0.1:" + args[0]);
        consumer.setPollNameServerInterval(1000);
        consumer.start();
        answer("{\"started\": true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null && !line.equals("stop"); line = lines.readLine()) {
            try {
                answer(obey(producer, consumer, line.split("\t")));
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

    private static String obey(DefaultMQProducer producer, DefaultMQPullConsumer consumer, String[] words)
        throws Exception {
        switch (words[0]) {
            case "send":
                needMaster(producer);
                return "{\"status\": \"" + producer.send(message(words[1], "first")).getSendStatus() + "\"}";
            case "load":
                load(producer, words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]));
                return "{}";
            case "progress":
                return "{\"acknowledged\": " + COUNT + ", \"sent\": " + NUMBER + "}";
            case "end":
                return end(words[1]);
            case "max":
                return max(consumer, words[1]);
            case "consume":
                return consume(consumer, words[1], words[2]);
            case "committed":
                return committed(consumer.getNamesrvAddr(), words[1], words[2]);
            default:
                throw new IllegalArgumentException("no command " + words[0]);
        }
    }

    /** Throws without a master: a producer that finds only slaves for a new topic never asks again. */
    private static void needMaster(DefaultMQProducer producer) throws Exception {
        var api = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
        var brokers = api.getTopicRouteInfoFromNameServer("TBW102", 3000).getBrokerDatas();
        if (brokers.stream().noneMatch(broker -> broker.getBrokerAddrs().containsKey(0L))) {
            throw new IllegalStateException("no master");
        }
    }

    private static Message message(String topic, String text) {
        Message message = new Message(topic, "tag", text, text.getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("number", text);
        return message;
    }

    private static void load(DefaultMQProducer producer, String topic, int threads, long pause) {
        ends = false;
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                while (!ends) {
                    sleep(sendNext(producer, topic) ? pause : 50);
                }
            });
            thread.start();
            THREADS.add(thread);
        }
    }

    private static void sleep(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException ignored) {
            Thread.currentThread().interrupt();
        }
    }

    private static boolean sendNext(DefaultMQProducer producer, String topic) {
        int number = NUMBER.getAndIncrement();
        try {
            SendResult result = producer.send(message(topic, String.valueOf(number)));
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException(result.toString());
            }
            ACKNOWLEDGED.add(number + "\t" + result.getMessageQueue().getQueueId() + "\t" + result.getQueueOffset() + "\t"
                + result.getOffsetMsgId() + "\n");
            COUNT.getAndIncrement();
            return true;
        } catch (Exception refused) {
            UNKNOWN.getAndIncrement();
            return false;
        }
    }

    private static String end(String file) throws Exception {
        ends = true;
        for (Thread thread : THREADS) {
            thread.join();
        }
        THREADS.clear();
        try (BufferedWriter out = Files.newBufferedWriter(Paths.get(file))) {
            for (String line : ACKNOWLEDGED) {
                out.write(line);
            }
        }
        return "{\"acknowledged\": " + COUNT + ", \"unknown\": " + UNKNOWN + "}";
    }

    private static String max(DefaultMQPullConsumer consumer, String topic) throws Exception {
        Map<String, Long> found = new TreeMap<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            found.put("\"" + queue.getQueueId() + "\"", consumer.maxOffset(queue));
        }
        return found.toString().replace('=', ':');
    }

    private static String committed(String names, String group, String topic) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(names);
        consumer.setInstanceName(group);
        consumer.start();
        try {
            Map<String, Long> found = new TreeMap<>();
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                found.put("\"" + queue.getQueueId() + "\"", consumer.fetchConsumeOffset(queue, true));
            }
            return found.toString().replace('=', ':');
        } finally {
            consumer.shutdown();
        }
    }

    private static String consume(DefaultMQPullConsumer consumer, String topic, String file) throws Exception {
        int count = 0;
        try (BufferedWriter out = Files.newBufferedWriter(Paths.get(file))) {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                long at = consumer.minOffset(queue);
                long max = consumer.maxOffset(queue);
                while (at < max) {
                    PullResult result = consumer.pull(queue, "*", at, 32);
                    if (result.getPullStatus() == PullStatus.FOUND) {
                        for (MessageExt each : result.getMsgFoundList()) {
                            byte[] data = each.getBody() == null ? new byte[0] : each.getBody();
                            String body = new String(data, StandardCharsets.UTF_8).replaceAll("\\p{Cntrl}", " ");
                            CRC32 crc = new CRC32();
                            crc.update(data);
                            out.write(body + "\t" + each.getQueueId() + "\t" + each.getQueueOffset() + "\t"
                                + each.getCommitLogOffset() + "\t" + crc.getValue() + "\n");
                            count++;
                        }
                    }
                    at = result.getNextBeginOffset();
                }
            }
        }
        return "{\"count\": " + count + "}";
    }
}

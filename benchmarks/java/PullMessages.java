import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Random;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * RocketMQ's own client. Arguments: the name server, a topic, and the threads that pull. Each line of standard input is
 * a command, answered by a JSON object with its seconds or its error:
 *
 * fill COUNT SIZE QUEUES: makes the topic and sends so many messages, in batches.
 * pull COUNT: a new DefaultLitePullConsumer receives so many messages, from the first one of each queue on. At the end
 * of a queue, a thread waits for new messages for seconds: ask for fewer than there are.
 */
public final class PullMessages {
    private static final int BATCH = 100;

    public static void main(String[] args) throws Exception {
        System.out.println("{\"started\": true}");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            try {
                System.out.printf("{\"seconds\": %.6f}%n", obey(args, line.split(" ")));
            } catch (Exception failed) {
                System.out.printf("{\"error\": \"%s\"}%n", failed.toString().replaceAll("[\"\\\\\\p{Cntrl}]", " "));
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static double obey(String[] args, String[] words) throws Exception {
        int count = Integer.parseInt(words[1]);
        return words[0].equals("fill")
            ? fill(args[0], args[1], count, Integer.parseInt(words[2]), Integer.parseInt(words[3]))
            : pull(args[0], args[1], count, Integer.parseInt(args[2]));
    }

    private static double fill(String names, String topic, int count, int size, int queues) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench-producers");
        producer.setNamesrvAddr(names);
        producer.setDefaultTopicQueueNums(queues);
        producer.start();
        try {
            Random random = new Random(size);
            long start = System.nanoTime();
            for (int sent = 0; sent < count; sent += BATCH) {
                List<Message> batch = new ArrayList<>();
                for (int i = sent; i < Math.min(sent + BATCH, count); i++) {
                    byte[] body = new byte[size];
                    random.nextBytes(body);
                    batch.add(new Message(topic, "tag" + i % 4, "key-" + i, body));
                }
                if (producer.send(batch).getSendStatus() != SendStatus.SEND_OK) {
                    throw new IllegalStateException("not sent");
                }
            }
            return (System.nanoTime() - start) / 1e9;
        } finally {
            producer.shutdown();
        }
    }

    private static double pull(String names, String topic, int count, int threads) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("bench-consumers");
        consumer.setNamesrvAddr(names);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.setPullThreadNums(threads);
        // The largest that brokers allow by default, and no pauses of the flow control.
        consumer.setPullBatchSize(32);
        consumer.setPullThresholdForAll(1_000_000);
        consumer.setPullThresholdForQueue(100_000);
        consumer.setPullThresholdSizeForQueue(1000);
        consumer.setConsumeMaxSpan(1_000_000_000);
        consumer.start();
        try {
            Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
            long start = System.nanoTime();
            consumer.assign(queues); // without committed offsets it begins with the first message
            int received = 0;
            while (received < count) {
                for (MessageExt each : consumer.poll(5000)) {
                    if (each.getBody() == null || each.getProperties() == null) {
                        throw new IllegalStateException("no message");
                    }
                    received++;
                }
            }
            return (System.nanoTime() - start) / 1e9;
        } finally {
            consumer.shutdown();
        }
    }
}

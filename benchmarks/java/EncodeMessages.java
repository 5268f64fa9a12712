import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;

/**
 * Encodes messages as a broker in DLedger mode does, in one thread: from fields to the bytes of an entry's body. Each
 * line of standard input is a round, "COUNT SIZE": COUNT messages with bodies of SIZE bytes. One JSON object a
 * round: the seconds, and the bytes of the result.
 */
public class EncodeMessages {
    private static final String LOG = "org.apache.rocketmq.store.dledger.DLedgerCommitLog";
    private static final int BODIES = 10000;

    public static void main(String[] args) throws Exception {
        System.out.println("{}");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            System.out.println(round(Integer.parseInt(words[0]), Integer.parseInt(words[1])));
        }
    }

    private static String round(int count, int size) throws Exception {
        Class<?> type = Class.forName(LOG + "$MessageSerializer");
        Constructor<?> constructor = type.getDeclaredConstructor(Class.forName(LOG), int.class);
        constructor.setAccessible(true);
        Object serializer = constructor.newInstance(null, 4 << 20);
        Method serialize = type.getMethod("serialize", MessageExtBrokerInner.class);
        serialize.setAccessible(true);
        Method getData = Class.forName(LOG + "$EncodeResult").getMethod("getData");
        getData.setAccessible(true);
        byte[][] bodies = new byte[BODIES][size];
        Random random = new Random(size);
        for (byte[] body : bodies) {
            random.nextBytes(body);
        }
        InetSocketAddress host = new InetSocketAddress(InetAddress.getByName("10.1.2.3"), 10911);
        long bytes = 0;
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            byte[] body = bodies[i % BODIES];
            message.setTopic("OrderTopic");
            message.setBody(body);
            message.setBodyCRC(UtilAll.crc32(body));
            message.setQueueId(i & 3);
            message.setBornTimestamp(1700000000000L);
            message.setBornHost(host);
            message.setStoreHost(host);
            Map<String, String> properties = new LinkedHashMap<>();
            properties.put("UNIQ_KEY", "7F00000100002A139A55" + i);
            properties.put("region", "eu-west");
            properties.put("KEYS", "order-" + i);
            properties.put("TAGS", "paid");
            message.setPropertiesString(MessageDecoder.messageProperties2String(properties));
            bytes += ((byte[]) getData.invoke(serialize.invoke(serializer, message))).length;
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        return String.format("{\"seconds\": %.6f, \"bytes\": %d}", seconds, bytes);
    }
}

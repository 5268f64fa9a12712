import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.net.Inet6Address;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Encodes messages like the CommitLog of a RocketMQ broker in DLedger mode (DLedgerCommitLog.MessageSerializer).
 *
 * A line of standard input is a message with fields separated by tabs: topic, body (base64, "-" for null), queueId,
 * queueOffset, flag, sysFlag, bornTimestamp, bornHost, bornPort, storeTimestamp, storeHost, storePort, then the names
 * and values of properties (base64, "-" for null). The answer is the message in base64 and the hash of the topic.
 * Runs with the jars of any version; reflection calls the methods that differ between them.
 */
public final class EncodeMessages {
    private static final String LOG = "org.apache.rocketmq.store.dledger.DLedgerCommitLog";
    private static final int FIELDS = 12;

    public static void main(String[] args) throws Exception {
        System.out.println("{\"started\": true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split("\t", -1);
            String data = Base64.getEncoder().encodeToString(encode(fields));
            System.out.println("{\"data\": \"" + data + "\", \"hash\": " + fields[0].hashCode() + "}");
            System.out.flush();
        }
    }

    private static byte[] encode(String[] fields) throws Exception {
        MessageExt message = message(fields);
        Class<?> type = Class.forName(LOG + "$MessageSerializer");
        Constructor<?> constructor = type.getDeclaredConstructor(Class.forName(LOG), int.class);
        constructor.setAccessible(true);
        Object serializer = constructor.newInstance(null, 8 << 20);
        Method serialize = type.getMethod("serialize", message.getClass());
        serialize.setAccessible(true);
        Object result = serialize.invoke(serializer, message);
        Method setQueueOffset = result.getClass().getMethod("setQueueOffsetKey", long.class, boolean.class);
        setQueueOffset.setAccessible(true);
        setQueueOffset.invoke(result, Long.parseLong(fields[3]), false);
        Method getData = result.getClass().getMethod("getData");
        getData.setAccessible(true);
        return (byte[]) getData.invoke(result);
    }

    // Prepared like CommitLog does: CRC, IPv6 flags, and the version by the topic's length.
    private static MessageExt message(String[] fields) throws Exception {
        MessageExt message = (MessageExt) inner().getConstructor().newInstance();
        message.setTopic(fields[0]);
        byte[] body = decoded(fields[1]);
        message.setBody(body);
        message.setBodyCRC(UtilAll.crc32(body));
        message.setQueueId(Integer.parseInt(fields[2]));
        message.setFlag(Integer.parseInt(fields[4]));
        message.setSysFlag(Integer.parseInt(fields[5]));
        message.setBornTimestamp(Long.parseLong(fields[6]));
        InetAddress born = InetAddress.getByName(fields[7]);
        message.setBornHost(new InetSocketAddress(born, Integer.parseInt(fields[8])));
        message.setStoreTimestamp(Long.parseLong(fields[9]));
        InetAddress store = InetAddress.getByName(fields[10]);
        message.setStoreHost(new InetSocketAddress(store, Integer.parseInt(fields[11])));
        if (born instanceof Inet6Address) {
            message.setBornHostV6Flag();
        }
        if (store instanceof Inet6Address) {
            message.setStoreHostAddressV6Flag();
        }
        Map<String, String> properties = new LinkedHashMap<>();
        for (int i = FIELDS; i < fields.length; i += 2) {
            byte[] value = decoded(fields[i + 1]);
            properties.put(new String(decoded(fields[i]), "UTF-8"), value == null ? null : new String(value, "UTF-8"));
        }
        String text = MessageDecoder.messageProperties2String(properties);
        message.getClass().getMethod("setPropertiesString", String.class).invoke(message, text);
        if (fields[0].length() > Byte.MAX_VALUE) {
            Class<?> version = Class.forName("org.apache.rocketmq.common.message.MessageVersion");
            Object second = version.getField("MESSAGE_VERSION_V2").get(null);
            message.getClass().getMethod("setVersion", version).invoke(message, second);
        }
        return message;
    }

    private static Class<?> inner() throws ClassNotFoundException {
        try {
            return Class.forName("org.apache.rocketmq.common.message.MessageExtBrokerInner");
        } catch (ClassNotFoundException older) {
            return Class.forName("org.apache.rocketmq.store.MessageExtBrokerInner");
        }
    }

    private static byte[] decoded(String field) {
        return field.equals("-") ? null : Base64.getDecoder().decode(field);
    }
}

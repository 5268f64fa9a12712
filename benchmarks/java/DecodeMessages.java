import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Paths;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Decodes the message in each entry of a DLedger segment, in one thread: body and properties, without the CRC. The first
 * line of output has the number of messages. Each line of standard input is a round, answered by a JSON object.
 */
public class DecodeMessages {
    private static final int HEADER = 48;
    private static final int MESSAGE = 1; // magic of an entry

    public static void main(String[] args) throws Exception {
        try (FileChannel file = FileChannel.open(Paths.get(args[0]))) {
            ByteBuffer segment = file.map(FileChannel.MapMode.READ_ONLY, 0, file.size());
            System.out.printf("{\"entries\": %d}%n", round(segment));
            ThreadMXBean threads = ManagementFactory.getThreadMXBean();
            BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
            while (commands.readLine() != null) {
                long start = System.nanoTime();
                long busy = threads.getCurrentThreadCpuTime();
                round(segment);
                double busySeconds = (threads.getCurrentThreadCpuTime() - busy) / 1e9;
                double seconds = (System.nanoTime() - start) / 1e9;
                System.out.printf("{\"seconds\": %.6f, \"processorSeconds\": %.6f}%n", seconds, busySeconds);
            }
        }
    }

    private static long round(ByteBuffer segment) {
        long messages = 0;
        int at = 0;
        while (at + HEADER <= segment.capacity() && segment.getInt(at) == MESSAGE) {
            int size = segment.getInt(at + 4);
            segment.limit(at + size).position(at + HEADER);
            MessageExt message = MessageDecoder.decode(segment.slice(), true, false);
            if (message == null || message.getBody() == null || message.getProperties() == null) {
                throw new IllegalStateException("no message at " + at);
            }
            messages++;
            at += size;
            segment.limit(segment.capacity());
        }
        return messages;
    }
}

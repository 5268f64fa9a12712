import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.Base64;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Reads messages as a Java node does, and writes what it understood as a Java node would.
 *
 * Each line of standard input: the name of a class of DLedger's protocol package, and a frame behind its length, in
 * base64. One JSON object a line: code, flag and opaque of the frame's header, and the body written again, in base64.
 */
public final class EchoMessages {
    public static void main(String[] args) throws Exception {
        System.out.println("{\"started\": true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            RemotingCommand command = RemotingCommand.decode(ByteBuffer.wrap(Base64.getDecoder().decode(words[1])));
            Class<?> type = Class.forName("io.openmessaging.storage.dledger.protocol." + words[0]);
            byte[] body = JSON.toJSONBytes(JSON.parseObject(command.getBody(), type));
            System.out.printf("{\"code\": %d, \"flag\": %d, \"opaque\": %d, \"body\": \"%s\"}%n", command.getCode(),
                command.getFlag(), command.getOpaque(), Base64.getEncoder().encodeToString(body));
        }
    }
}

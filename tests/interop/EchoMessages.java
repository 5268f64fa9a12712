import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.Base64;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Decodes messages like a Java node and encodes the result again.
 *
 * A line of standard input is a class name of DLedger's protocol package and a frame without its length, in base64.
 * The answer is a JSON object: code, flag and opaque of the header, and the encoded body in base64.
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

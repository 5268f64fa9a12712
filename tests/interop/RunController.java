import io.openmessaging.storage.dledger.DLedgerServer;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.controller.ControllerManager;
import org.apache.rocketmq.controller.ControllerStartup;
import org.apache.rocketmq.controller.impl.DLedgerController;

/**
 * A RocketMQ controller, which elects the master of brokers in controller mode.
 *
 * Argument: its configuration file. Each line of standard input is a command; the answer is a line with a JSON object.
 * The first answer line says that the controller runs; state: isLeader.
 */
public final class RunController {
    public static void main(String[] args) throws Exception {
        ControllerManager manager = ControllerStartup.createControllerManager(new String[] {"-c", args[0]});
        if (!manager.initialize()) {
            throw new IllegalStateException("the controller does not start");
        }
        if (manager.getController() instanceof DLedgerController) {
            Field server = DLedgerController.class.getDeclaredField("dLedgerServer");
            server.setAccessible(true);
            Loopback.only((DLedgerServer) server.get(manager.getController()));
        }
        manager.start();
        answer("{\"started\": true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        while (lines.readLine() != null) {
            answer("{\"isLeader\": " + manager.getController().isLeaderState() + "}");
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(String text) {
        System.out.println(text);
        System.out.flush();
    }
}

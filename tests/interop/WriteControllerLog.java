import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.MemberState;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.store.file.DLedgerMmapFileStore;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.common.ControllerConfig;
import org.apache.rocketmq.controller.elect.impl.DefaultElectPolicy;
import org.apache.rocketmq.controller.impl.DLedgerController;
import org.apache.rocketmq.controller.impl.event.EventMessage;
import org.apache.rocketmq.controller.impl.event.EventSerializer;
import org.apache.rocketmq.controller.impl.manager.ReplicasInfoManager;
import org.apache.rocketmq.controller.impl.manager.SyncStateInfo;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.body.SyncStateSet;
import org.apache.rocketmq.remoting.protocol.header.controller.AlterSyncStateSetRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.controller.ElectMasterRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.controller.admin.CleanControllerBrokerDataRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.controller.register.ApplyBrokerIdRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.controller.register.RegisterBrokerToControllerRequestHeader;

/**
 * A controller of one member, with its log in a folder, and what RocketMQ's own reader says of such a log.
 *
 * Arguments: the folder and a port of the loopback address. Each line of standard input is a command with fields between
 * blanks; the answer is a line with a JSON object:
 *
 * open: starts the controller and waits until it leads. close: a clean shutdown.
 * apply BROKER ID ADDRESS, register BROKER ID ADDRESS, elect BROKER ID (-1: the controller asks), alter BROKER MASTER
 * EPOCH SETEPOCH ID..., clean BROKER ID... (dead ones, or all): a request; the answer has its code. dead ID...: these brokers do not live.
 * dump: of the closed store, each entry with its event as RocketMQ's serializer reads it, and what RocketMQ's state
 * machine has of the event's broker after it.
 */
public final class WriteControllerLog {
    private static final String CLUSTER = "DefaultCluster";
    private static final Set<Long> DEAD = new HashSet<>();
    private static DLedgerController controller;

    public static void main(String[] args) throws Exception {
        System.out.println("{\"started\": true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                answer = obey(args[0], args[1], line.split(" "));
            } catch (Throwable thrown) {
                thrown.printStackTrace();
                answer = "{\"error\": " + quoted(thrown.toString()) + "}";
            }
            System.out.println(answer);
            System.out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static String obey(String folder, String port, String[] words) throws Exception {
        String name = words.length > 1 ? words[1] : null;
        switch (words[0]) {
            case "open":
                open(folder, port);
                return "{\"open\": true}";
            case "close":
                controller.shutdown();
                return "{\"closed\": true}";
            case "dead":
                DEAD.clear();
                DEAD.addAll(ids(words, 1));
                return "{\"dead\": " + DEAD.size() + "}";
            case "apply":
                long id = Long.parseLong(words[2]);
                return code(controller.applyBrokerId(
                    new ApplyBrokerIdRequestHeader(CLUSTER, name, id, words[3] + ";" + id)));
            case "register":
                return code(controller.registerBroker(
                    new RegisterBrokerToControllerRequestHeader(CLUSTER, name, Long.parseLong(words[2]), words[3])));
            case "elect":
                return code(controller.electMaster(words[2].equals("-1")
                    ? ElectMasterRequestHeader.ofControllerTrigger(name)
                    : ElectMasterRequestHeader.ofBrokerTrigger(CLUSTER, name, Long.parseLong(words[2]))));
            case "alter":
                AlterSyncStateSetRequestHeader header = new AlterSyncStateSetRequestHeader(
                    name, Long.parseLong(words[2]), Integer.parseInt(words[3]));
                return code(controller.alterSyncStateSet(
                    header, new SyncStateSet(ids(words, 5), Integer.parseInt(words[4]))));
            case "clean":
                String cleaned = String.join(";", Arrays.copyOfRange(words, 2, words.length));
                return code(controller.cleanBrokerData(
                    new CleanControllerBrokerDataRequestHeader(CLUSTER, name, cleaned, cleaned.isEmpty())));
            case "dump":
                return dump(folder);
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static void open(String folder, String port) throws Exception {
        ControllerConfig config = new ControllerConfig();
        config.setControllerDLegerGroup("controllers");
        config.setControllerDLegerPeers("n0-127.0.0.1:" + port);
        config.setControllerDLegerSelfId("n0");
        config.setControllerStorePath(folder);
        config.setMappedFileSize(64 * 1024);
        controller = new DLedgerController(config, (cluster, broker, id) -> !DEAD.contains(id));
        controller.setElectPolicy(new DefaultElectPolicy((cluster, broker, id) -> !DEAD.contains(id), null));
        Field server = DLedgerController.class.getDeclaredField("dLedgerServer");
        server.setAccessible(true);
        Loopback.only((DLedgerServer) server.get(controller));
        controller.startup();
        while (!controller.isLeaderState()) {
            Thread.sleep(20);
        }
    }

    private static Set<Long> ids(String[] words, int from) {
        Set<Long> found = new HashSet<>();
        for (int i = from; i < words.length; i++) {
            found.add(Long.parseLong(words[i]));
        }
        return found;
    }

    private static String code(CompletableFuture<RemotingCommand> future) throws Exception {
        return "{\"code\": " + future.get(10, TimeUnit.SECONDS).getCode() + "}";
    }

    private static String dump(String folder) throws Exception {
        DLedgerConfig config = new DLedgerConfig();
        config.setStoreBaseDir(folder);
        config.setSelfId("n0");
        config.setGroup("controllers");
        config.setMappedFileSizeForEntryData(64 * 1024);
        DLedgerMmapFileStore store = new DLedgerMmapFileStore(config, new MemberState(config));
        store.load();
        store.recover();
        ReplicasInfoManager manager = new ReplicasInfoManager(new ControllerConfig());
        Field table = ReplicasInfoManager.class.getDeclaredField("syncStateSetInfoTable");
        table.setAccessible(true);
        List<String> lines = new ArrayList<>();
        for (long index = 0; index <= store.getLedgerEndIndex(); index++) {
            DLedgerEntry entry = store.get(index);
            EventMessage event = null;
            SyncStateInfo state = null;
            if (entry.getBody() != null && entry.getBody().length > 0) {
                event = new EventSerializer().deserialize(entry.getBody());
                manager.applyEvent(event);
                Object name = event.getClass().getMethod("getBrokerName").invoke(event);
                state = (SyncStateInfo) ((Map<?, ?>) table.get(manager)).get(name);
            }
            lines.add(String.format(
                "{\"index\": %d, \"term\": %d, \"event\": %s, \"text\": %s, \"masterBrokerId\": %s, \"masterEpoch\": %s, "
                    + "\"syncStateSet\": %s, \"syncStateSetEpoch\": %s}",
                index, entry.getTerm(), event == null ? null : quoted(event.getEventType().getName()),
                event == null ? null : quoted(event.toString()),
                state == null ? null : state.getMasterBrokerId(), state == null ? null : state.getMasterEpoch(),
                state == null ? null : new TreeSet<>(state.getSyncStateSet()),
                state == null ? null : state.getSyncStateSetEpoch()));
        }
        return "{\"entries\": " + lines + "}";
    }

    private static String quoted(String text) {
        return "\"" + text.replaceAll("[\"\\\\\\p{Cntrl}]", " ") + "\"";
    }
}

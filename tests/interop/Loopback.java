import io.netty.bootstrap.ServerBootstrap;
import io.openmessaging.storage.dledger.DLedgerServer;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.net.SocketAddress;

/** Binds DLedger to the loopback address. It has no setting for this and would listen on every address. */
final class Loopback {
    private Loopback() {
    }

    /** Must be called before the start. */
    static void only(DLedgerServer server) throws Exception {
        Object remoting = field(server.getdLedgerRpcService(), "remotingServer");
        Field bootstrap = remoting.getClass().getDeclaredField("serverBootstrap");
        bootstrap.setAccessible(true);
        bootstrap.set(remoting, new ServerBootstrap() {
            @Override
            public ServerBootstrap localAddress(SocketAddress address) {
                return super.localAddress(new InetSocketAddress("127.0.0.1", ((InetSocketAddress) address).getPort()));
            }
        });
    }

    private static Object field(Object owner, String name) throws Exception {
        Field field = owner.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
    }
}

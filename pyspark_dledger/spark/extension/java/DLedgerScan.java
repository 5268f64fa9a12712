package pyspark_dledger.spark;

import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.internal.connector.SupportsMetadata;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.Some;
import scala.collection.Seq;
import scala.util.Failure;

/** Spark's scan of a Python data source, with the statistics that its first partition carries. */
final class DLedgerScan implements Scan, SupportsReportStatistics, SupportsMetadata {
    /** Written by pyspark_dledger/spark/read/batch_reader.py. */
    private static final Pattern STATISTICS = Pattern.compile("dledger-statistics rows=(-?\\d+) bytes=(\\d+);");

    /** An option of the source: Python does not know the cores of the cluster. */
    private static final String PARALLELISM = "defaultParallelism";

    /** Filters are pushed for this scan only; spark/source.py takes none from others. */
    private static final String PLANNED = "plannedByExtension";

    private final PythonScan scan;
    private final Batch batch;

    private DLedgerScan(PythonScan scan) {
        this.scan = scan;
        this.batch = scan.toBatch(); // its partitions are planned once
    }

    static DLedgerScan planned(String name, StructType schema, CaseInsensitiveStringMap options, Filter[] filters) {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(name);
        boolean pushes = filters.length > 0 && SparkVersion.pushesFilters();
        Map changed = new HashMap(options.asCaseSensitiveMap());
        if (pushes) {
            changed.put(PLANNED, "true");
        }
        if (CatalogTables.isLog(options) && !options.containsKey(PARALLELISM)) {
            changed.put(PARALLELISM, String.valueOf(CatalogTables.session().sparkContext().defaultParallelism()));
        }
        CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(changed);
        Filter[] pushed = pushes ? push(source, name, schema, given, filters) : new Filter[0];
        return new DLedgerScan(pythonScan(source, name, schema, given, pushed));
    }

    /** The filters that Python takes. Spark 4.0 has none of these methods, so they are called by their names. */
    private static Filter[] push(
            PythonDataSourceV2 source, String name, StructType schema, CaseInsensitiveStringMap options, Filter[] filters) {
        Object python = source.getOrCreateDataSourceInPython(name, options, new Some(schema));
        Option result = (Option) call(source.source(), "pushdownFiltersInPython", new Object[] {python, schema, filters});
        List pushed = new ArrayList();
        if (result.isDefined()) {
            call(source, "setReadInfo", new Object[] {call(result.get(), "readInfo", new Object[0])});
            Seq isPushed = (Seq) call(result.get(), "isFilterPushed", new Object[0]);
            for (int i = 0; i < filters.length; i++) {
                if (Boolean.TRUE.equals(isPushed.apply(i))) {
                    pushed.add(filters[i]);
                }
            }
        }
        return (Filter[]) pushed.toArray(new Filter[0]);
    }

    private static Object call(Object receiver, String name, Object[] arguments) {
        Method[] methods = receiver.getClass().getMethods();
        for (int i = 0; i < methods.length; i++) {
            if (methods[i].getName().equals(name) && methods[i].getParameterCount() == arguments.length) {
                try {
                    return methods[i].invoke(receiver, arguments);
                } catch (InvocationTargetException error) {
                    return new Failure(error.getCause()).get(); // throws it, such as Spark's AnalysisException
                } catch (ReflectiveOperationException error) {
                    throw new IllegalStateException(receiver.getClass() + "." + name + " cannot be called", error);
                }
            }
        }
        throw new IllegalStateException(receiver.getClass() + " has no method " + name);
    }

    /** Its constructor takes the pushed filters since Spark 4.1. */
    private static PythonScan pythonScan(
            PythonDataSourceV2 source, String name, StructType schema, CaseInsensitiveStringMap options, Filter[] pushed) {
        Constructor constructor = PythonScan.class.getConstructors()[0];
        try {
            return (PythonScan) (constructor.getParameterCount() == 4
                    ? constructor.newInstance(new Object[] {source, name, schema, options})
                    : constructor.newInstance(new Object[] {source, name, schema, options, pushed}));
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException("Spark's PythonScan cannot be made", error);
        }
    }

    public StructType readSchema() {
        return this.scan.readSchema();
    }

    public String description() {
        return this.scan.description();
    }

    public Batch toBatch() {
        return this.batch;
    }

    public org.apache.spark.sql.connector.metric.CustomMetric[] supportedCustomMetrics() {
        return this.scan.supportedCustomMetrics();
    }

    public Scan.ColumnarSupportMode columnarSupportMode() {
        return this.scan.columnarSupportMode();
    }

    public scala.collection.immutable.Map getMetaData() {
        return metadata(this.scan);
    }

    /** What a scan says in a plan: Spark 4.0 says nothing of a Python source. */
    static scala.collection.immutable.Map metadata(Scan scan) {
        return scan instanceof SupportsMetadata
                ? ((SupportsMetadata) scan).getMetaData()
                : scala.collection.immutable.Map$.MODULE$.empty();
    }

    public Statistics estimateStatistics() {
        InputPartition[] partitions = this.batch.planInputPartitions();
        if (partitions.length > 0) {
            byte[] first = ((PythonInputPartition) partitions[0]).pickedPartition();
            Matcher matcher = STATISTICS.matcher(new String(first, StandardCharsets.ISO_8859_1));
            if (matcher.find()) {
                return new KnownSize(readSchema(), Long.parseLong(matcher.group(1)), Long.parseLong(matcher.group(2)));
            }
        }
        return new KnownSize(null, -1, -1);
    }

    /** Rows, and bytes: those of the log, or of the rows if few columns are read. -1 is unknown. */
    private static final class KnownSize implements Statistics {
        private final long rows;
        private final long bytes;

        KnownSize(StructType schema, long rows, long logBytes) {
            this.rows = rows;
            this.bytes = rows < 0 ? logBytes : Math.min(logBytes, rows * (schema.defaultSize() + 8));
        }

        public OptionalLong sizeInBytes() {
            return this.bytes < 0 ? OptionalLong.empty() : OptionalLong.of(this.bytes);
        }

        public OptionalLong numRows() {
            return this.rows < 0 ? OptionalLong.empty() : OptionalLong.of(this.rows);
        }
    }
}

package pyspark_dledger.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.CatalogTableType;
import org.apache.spark.sql.catalyst.catalog.CatalogUtils;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.ColumnDefinition$;
import org.apache.spark.sql.catalyst.plans.logical.CreateTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.ReplaceTable;
import org.apache.spark.sql.catalyst.plans.logical.ReplaceTableAsSelect;
import org.apache.spark.sql.catalyst.plans.logical.TableSpec;
import org.apache.spark.sql.catalyst.plans.logical.V2CreateTablePlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.V2SessionCatalog;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.Product;
import scala.Some;
import scala.jdk.javaapi.CollectionConverters;

/** Gives Python the path and the options of a table in Spark's catalog: Spark itself passes it none of them. */
final class CatalogTables {
    private static final String SOURCE = "dledger";
    private static final String LOG_SCHEMA = "@LOG_SCHEMA@"; // JSON; extension/__init__.py puts both in
    private static final String WRITE_ONLY = "@WRITE_ONLY@"; // options in lower case

    private CatalogTables() {}

    /** The options of a read: those of the catalog without those of writes, then those of the query. */
    static CaseInsensitiveStringMap readOptions(DataSourceV2Relation relation) {
        Map options = lowerCase(options(relation));
        options.keySet().removeAll(Arrays.asList(WRITE_ONLY.split(",")));
        options.putAll(relation.options());
        return new CaseInsensitiveStringMap(options);
    }

    private static CaseInsensitiveStringMap options(DataSourceV2Relation relation) {
        if (relation.catalog().isEmpty() || !(relation.catalog().get() instanceof V2SessionCatalog)) {
            return relation.options();
        }
        Identifier name = (Identifier) relation.identifier().get();
        CatalogTable table;
        try {
            table = session().sessionState()
                    .catalog()
                    .getTableMetadata(new TableIdentifier(name.name(), Option.apply(name.namespace()[0])));
        } catch (AnalysisException dropped) {
            return relation.options();
        }
        CatalogStorageFormat storage = table.storage();
        Map options = lowerCase(CollectionConverters.asJava(storage.properties()));
        boolean isManaged = table.tableType().equals(CatalogTableType.MANAGED());
        if (storage.locationUri().isDefined() && !(isManaged && options.containsKey("peers"))) {
            options.put("path", CatalogUtils.URIToString((java.net.URI) storage.locationUri().get()));
        }
        options.putAll(relation.options());
        return new CaseInsensitiveStringMap(options);
    }

    /** A command on a table of the catalog with what it lacks, or the plan itself. */
    static TreeNode completed(TreeNode plan) {
        if (plan instanceof AppendData && ((AppendData) plan).productElement(0) instanceof DataSourceV2Relation) {
            return withOptions((AppendData) plan, (DataSourceV2Relation) ((AppendData) plan).productElement(0));
        }
        TableSpec table = plan instanceof V2CreateTablePlan ? specification((Product) plan) : null;
        if (table != null && isSource((String) table.provider().getOrElse(null))) {
            return checked((V2CreateTablePlan) plan, table);
        }
        return plan;
    }

    private static TreeNode withOptions(AppendData append, DataSourceV2Relation relation) {
        if (!isSource(relation.table().name())) {
            return append;
        }
        CaseInsensitiveStringMap options = options(relation);
        if (options.equals(relation.options())) {
            return append;
        }
        Map given = lowerCase(options);
        given.putAll(lowerCase(CollectionConverters.asJava(append.writeOptions())));
        LogicalWriteInfo info = new WriteInfo(append.query().schema(), new CaseInsensitiveStringMap(given));
        Object[] arguments = elements(append);
        Object[] parts = elements(relation);
        for (int i = 0; i < parts.length; i++) {
            parts[i] = parts[i] instanceof CaseInsensitiveStringMap ? options : parts[i];
        }
        arguments[0] = relation.makeCopy(parts);
        for (int i = 0; i < arguments.length; i++) {
            if (arguments[i] instanceof Some && ((Some) arguments[i]).get() instanceof Write) {
                arguments[i] = new Some(((SupportsWrite) relation.table()).newWriteBuilder(info).build());
            }
        }
        return append.makeCopy(arguments);
    }

    private static TableSpec specification(Product plan) {
        for (int i = 0; i < plan.productArity(); i++) {
            if (plan.productElement(i) instanceof TableSpec) {
                return (TableSpec) plan.productElement(i);
            }
        }
        return null;
    }

    /** A command that makes a table: without columns it gets those of the source, as Spark passes other options. */
    private static TreeNode checked(V2CreateTablePlan plan, TableSpec table) {
        if (plan instanceof ReplaceTable || plan instanceof ReplaceTableAsSelect) {
            throw new IllegalArgumentException("a dledger table cannot be replaced, because a log is append-only: use "
                    + "mode append, or create another table");
        }
        Map options = lowerCase(CollectionConverters.asJava(table.options()));
        if (table.location().isDefined()) {
            options.put("path", table.location().get());
        }
        StructType columns = plan.tableSchema();
        if (columns.isEmpty()) {
            return withColumns((LogicalPlan) plan, inferred(options).fields());
        }
        // Spark makes the columns of a query nullable.
        StructType made = plan instanceof CreateTable ? columns : columns.asNullable();
        check(made, isLog(options) ? (StructType) DataType.fromJson(LOG_SCHEMA) : inferred(options));
        return (TreeNode) plan;
    }

    private static StructType inferred(Map options) {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(SOURCE);
        return source.inferSchema(new CaseInsensitiveStringMap(options));
    }

    private static TreeNode withColumns(LogicalPlan create, StructField[] fields) {
        List columns = new ArrayList();
        for (int i = 0; i < fields.length; i++) {
            columns.add(ColumnDefinition$.MODULE$.fromV1Column(fields[i], session().sessionState().sqlParser()));
        }
        Object[] arguments = elements(create);
        arguments[1] = CollectionConverters.asScala(columns).toList();
        return create.makeCopy(arguments);
    }

    /** Raises an error for columns that a read would reject: before the table is made, or anything is written. */
    private static void check(StructType columns, StructType source) {
        for (int i = 0; i < columns.length(); i++) {
            StructField column = columns.fields()[i];
            StructField expected = null;
            for (int j = 0; j < source.length(); j++) {
                expected = source.fields()[j].name().equalsIgnoreCase(column.name()) ? source.fields()[j] : expected;
            }
            if (expected == null) {
                throw new IllegalArgumentException("unknown column " + column.name() + " of a dledger table");
            }
            String type = expected.dataType().catalogString();
            if (!type.equals(column.dataType().catalogString()) || expected.nullable() && !column.nullable()) {
                throw new IllegalArgumentException("expected column " + expected.name() + " " + type + ", found "
                        + column.dataType().catalogString() + (column.nullable() ? "" : " NOT NULL")
                        + ": cast it, so that the table can be read");
            }
        }
    }

    /** Whether the option table chooses the log, and not a table about the store. */
    static boolean isLog(Map options) {
        return "log".equalsIgnoreCase((String) options.getOrDefault("table", "log"));
    }

    static boolean isSource(String name) {
        return SOURCE.equalsIgnoreCase(name);
    }

    static SparkSession session() {
        return (SparkSession) SparkSession$.MODULE$.active();
    }

    private static Map lowerCase(Map options) {
        return new HashMap(new CaseInsensitiveStringMap(options));
    }

    static Object[] elements(LogicalPlan plan) {
        Object[] elements = new Object[((Product) plan).productArity()];
        for (int i = 0; i < elements.length; i++) {
            elements[i] = ((Product) plan).productElement(i);
        }
        return elements;
    }

    private static final class WriteInfo implements LogicalWriteInfo {
        private final StructType schema;
        private final CaseInsensitiveStringMap options;

        WriteInfo(StructType schema, CaseInsensitiveStringMap options) {
            this.schema = schema;
            this.options = options;
        }

        public CaseInsensitiveStringMap options() {
            return this.options;
        }

        public String queryId() {
            return UUID.randomUUID().toString();
        }

        public StructType schema() {
            return this.schema;
        }
    }
}

package pyspark_dledger.spark;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.DataSourceStrategy$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** What one query reads of one table: the columns of all its scans, and the filters if there is only one scan. */
final class TableUse {
    private final Table table;
    private final CaseInsensitiveStringMap options;
    private final Set columns = new HashSet();
    private List conditions = new ArrayList();
    private int scans = 0;
    private DLedgerScan scan = null;

    TableUse(DataSourceV2ScanRelation relation) {
        this.table = relation.relation().table();
        this.options = CatalogTables.readOptions(relation.relation());
    }

    /** Adds one scan, of which its parents read the attributes in {@code required}, or all if that is null. */
    void add(DataSourceV2ScanRelation relation, AttributeSet required, List conditions) {
        this.scans += 1;
        this.conditions = conditions;
        Seq output = relation.output();
        for (int i = 0; i < output.size(); i++) {
            AttributeReference attribute = (AttributeReference) output.apply(i);
            if (required == null || required.contains(attribute)) {
                this.columns.add(attribute.name());
            }
        }
    }

    /** The relation with the new scan and only the attributes that it reads. */
    Object planned(DataSourceV2ScanRelation relation) {
        if (this.scan == null) {
            this.scan = newScan();
        }
        StructType schema = this.scan.readSchema();
        List output = new ArrayList();
        for (int i = 0; i < relation.output().size(); i++) {
            AttributeReference attribute = (AttributeReference) relation.output().apply(i);
            if (schema.getFieldIndex(attribute.name()).isDefined()) {
                output.add(attribute);
            }
        }
        Object[] arguments = CatalogTables.elements(relation);
        arguments[1] = this.scan;
        arguments[2] = CollectionConverters.asScala(output).toList();
        return relation.makeCopy(arguments);
    }

    private DLedgerScan newScan() {
        StructType schema = new StructType();
        StructField[] fields = this.table.schema().fields();
        for (int i = 0; i < fields.length; i++) {
            if (this.columns.contains(fields[i].name())) {
                schema = schema.add(fields[i]);
            }
        }
        if (schema.isEmpty() && fields.length > 0) { // count(*) needs rows, but no column
            schema = schema.add(narrowest(fields));
        }
        return DLedgerScan.planned(this.table.name(), schema, this.options, filters());
    }

    /** The column that costs least: pos is in every row of the log. */
    private static StructField narrowest(StructField[] fields) {
        for (int i = 0; i < fields.length; i++) {
            if (fields[i].name().equalsIgnoreCase("pos")) {
                return fields[i];
            }
        }
        return fields[0];
    }

    private Filter[] filters() {
        List filters = new ArrayList();
        if (this.scans == 1 && CatalogTables.isLog(this.options) && !this.options.containsKey("peers")) {
            for (int i = 0; i < this.conditions.size(); i++) {
                addTranslated((Expression) this.conditions.get(i), filters);
            }
        }
        return (Filter[]) filters.toArray(new Filter[0]);
    }

    private static void addTranslated(Expression condition, List filters) {
        if (condition instanceof org.apache.spark.sql.catalyst.expressions.And) {
            addTranslated((Expression) condition.children().apply(0), filters);
            addTranslated((Expression) condition.children().apply(1), filters);
            return;
        }
        Option translated = DataSourceStrategy$.MODULE$.translateFilter(condition, true);
        if (translated.isDefined()) {
            filters.add(translated.get());
        }
    }
}

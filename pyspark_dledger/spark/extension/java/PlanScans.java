package pyspark_dledger.spark;

import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Subquery;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import scala.Function1;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractPartialFunction;

/**
 * Replaces each scan of a dledger table by one that reads the columns of the query, planned for this query.
 *
 * <p>A table that a query names several times is planned once, with the columns of all its scans: so all of them see
 * the same rows. Filters are pushed only into a table that the query names once, and Spark evaluates them again.
 *
 * <p>Written without lambdas: Spark's own compiler, Janino, compiles it.
 */
public final class PlanScans extends Rule {
    public TreeNode apply(TreeNode plan) {
        // The plan of a subquery comes again, as a part of the plan of the query.
        if (plan instanceof Subquery || !SparkVersion.isKnown()) {
            return plan;
        }
        LogicalPlan completed = (LogicalPlan) CatalogTables.completed(plan);
        IdentityHashMap uses = new IdentityHashMap();
        visit(completed, null, new ArrayList(), uses);
        return uses.isEmpty() ? completed : completed.transformUpWithSubqueries(new Replacement(uses));
    }

    /** Collects the uses of each table. Required are the attributes that the parents read, null for all. */
    private static void visit(LogicalPlan plan, AttributeSet required, List conditions, Map uses) {
        if (isScan(plan)) {
            DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) plan;
            TableUse use = (TableUse) uses.get(relation.relation().table());
            if (use == null) {
                use = new TableUse(relation);
                uses.put(relation.relation().table(), use);
            }
            use.add(relation, required, conditions);
        } else if (plan instanceof Project) {
            visit(((Project) plan).child(), plan.references(), new ArrayList(), uses);
        } else if (plan instanceof Filter) {
            List all = new ArrayList(conditions);
            all.add(((Filter) plan).condition());
            AttributeSet read = required == null ? null : required.$plus$plus(plan.references());
            visit(((Filter) plan).child(), read, all, uses);
        } else {
            visitAll(plan.children(), uses);
        }
        visitAll(plan.subqueries(), uses);
    }

    private static void visitAll(Seq plans, Map uses) {
        for (int i = 0; i < plans.size(); i++) {
            visit((LogicalPlan) plans.apply(i), null, new ArrayList(), uses);
        }
    }

    /** Whether a plan is a scan of dledger. Spark has removed filters that it pushed itself: such a scan stays. */
    private static boolean isScan(Object plan) {
        if (!(plan instanceof DataSourceV2ScanRelation)) {
            return false;
        }
        DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) plan;
        if (!(relation.scan() instanceof PythonScan) || !CatalogTables.isSource(relation.relation().table().name())) {
            return false;
        }
        scala.Option pushed = DLedgerScan.metadata(relation.scan()).get("PushedFilters");
        return pushed.isEmpty() || "[]".equals(pushed.get());
    }

    private static final class Replacement extends AbstractPartialFunction {
        private final Map uses;

        Replacement(Map uses) {
            this.uses = uses;
        }

        public boolean isDefinedAt(Object plan) {
            return isScan(plan);
        }

        public Object applyOrElse(Object plan, Function1 otherwise) {
            if (!isScan(plan)) {
                return otherwise.apply(plan);
            }
            DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) plan;
            return ((TableUse) uses.get(relation.relation().table())).planned(relation);
        }
    }
}

package pyspark_dledger.spark;

import org.apache.spark.sql.ExperimentalMethods;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.classic.SparkSession;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/** The value of spark.sql.extensions. It adds {@link PlanScans} to the optimizer of each session. */
public final class DLedgerExtensions extends AbstractFunction1 {
    public Object apply(Object extensions) {
        ((SparkSessionExtensions) extensions).injectOptimizerRule(new AbstractFunction1() {
            public Object apply(Object session) {
                enable((SparkSession) session);
                return new PlanScans(); // changes nothing: these rules run before there are scans
            }
        });
        return BoxedUnit.UNIT;
    }

    /** Add the rule to a session, once. Only rules of this kind run when Spark has made scans of the tables. */
    public static void enable(SparkSession session) {
        ExperimentalMethods methods = session.experimental();
        Seq rules = methods.extraOptimizations();
        for (int i = 0; i < rules.size(); i++) {
            if (rules.apply(i).getClass().getName().equals(PlanScans.class.getName())) {
                return;
            }
        }
        methods.extraOptimizations_$eq((Seq) rules.appended(new PlanScans()));
    }
}

package pyspark_dledger.spark;

import org.slf4j.LoggerFactory;

/** The versions of Spark whose plans the extension knows. */
final class SparkVersion {
    private static final String VERSION = org.apache.spark.package$.MODULE$.SPARK_VERSION();
    private static final boolean IS_KNOWN = VERSION.matches("4\\.[0-3]\\..*");

    static {
        if (!IS_KNOWN) {
            LoggerFactory.getLogger("pyspark_dledger").warn(
                    "the extension of dledger does nothing: expected Spark 4.0 to 4.3, found " + VERSION);
        }
    }

    private SparkVersion() {}

    static boolean isKnown() {
        return IS_KNOWN;
    }

    /** Whether Python data sources take filters: since Spark 4.1. */
    static boolean pushesFilters() {
        return !VERSION.startsWith("4.0.");
    }
}

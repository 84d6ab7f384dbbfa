"""Orders into Parquet, and a count by hour: what waits in the channel now, then end."""

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("orders").getOrCreate()

orders = (
    spark.readStream.format("nsq")
    .option("nsqdTcpAddresses", "127.0.0.1:4150")  # or lookupdHttpAddresses
    .option("subscribe", "orders")
    .option("channel", "spark")  # of this query alone
    .option("walPath", "/tmp/orders/checkpoint/nsq-wal")  # shared by driver and executors
    .load()
)
query = (
    orders.selectExpr(
        "id",
        "timestamp",
        "get_json_object(string(value), '$.number') AS number",
    )
    .writeStream.format("parquet")
    .option("checkpointLocation", "/tmp/orders/checkpoint")
    .trigger(availableNow=True)  # without it the query goes on until it is stopped
    .start("/tmp/orders/rows")
)
query.awaitTermination()

rows = spark.read.parquet("/tmp/orders/rows")
rows.groupBy(rows.timestamp.substr(1, 13).alias("hour")).count().show()

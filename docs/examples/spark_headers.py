"""Orders in envelopes: headers as columns, JSON as columns, duplicates dropped."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from gnsqsync.spark import body, headers

spark = SparkSession.builder.appName("orders").getOrCreate()
messages = (
    spark.readStream.format("nsq")
    .option("subscribe", "orders")
    .option("channel", "spark")
    .option("nsqdTcpAddresses", "127.0.0.1:4150")
    .option("walPath", "/tmp/orders/checkpoint/nsq-wal")
    .load()
)
orders = (
    messages.withWatermark("timestamp", "1 hour")
    .dropDuplicatesWithinWatermark(["nsqd", "id"])
    .select(
        headers("value").alias("headers"),
        F.from_json(body("value").cast("string"), "customer STRING, amount INT").alias("o"),
    )
    .select("headers.key", "headers.source", "o.customer", "o.amount")
)
query = (
    orders.writeStream.format("parquet")
    .option("checkpointLocation", "/tmp/orders/checkpoint")
    .trigger(availableNow=True)
    .start("/tmp/orders/rows")
)
query.awaitTermination()
spark.read.parquet("/tmp/orders/rows").orderBy("amount").show(truncate=False)

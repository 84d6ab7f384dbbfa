"""Orders in Avro as columns. Needs Spark's package spark-avro."""

from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro

from gnsqsync.spark import body

SCHEMA = """{"type": "record", "name": "Order", "fields": [
    {"name": "customer", "type": "string"}, {"name": "amount", "type": "long"}]}"""

spark = SparkSession.builder.appName("avro").getOrCreate()
messages = (
    spark.read.format("nsq")
    .option("subscribe", "orders")
    .option("channel", "spark")
    .option("nsqdTcpAddresses", "127.0.0.1:4150")
    .option("peek", "true")
    .load()
)
orders = messages.select(from_avro(body("value"), SCHEMA).alias("order"))
orders.select("order.*").orderBy("amount").show()

"""A Flask view that publishes. Run it with ``flask --app flask_app run``."""

from flask import Flask, request

from gnsqsync.errors import PublishError
from gnsqsync.flask import NSQ

app = Flask(__name__)
app.config["NSQ_NSQD_ADDRESSES"] = ["127.0.0.1:4150"]
nsq = NSQ(app)  # connects at the first publish, in each process by itself


@app.post("/orders")
def take_order():
    try:
        nsq.publish("orders", app.json.dumps(request.get_json()))
    except PublishError as error:
        return {"error": str(error)}, 503
    return {"queued": True}, 202

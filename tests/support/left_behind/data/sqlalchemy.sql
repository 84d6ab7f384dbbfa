BEGIN TRANSACTION;
CREATE TABLE nsq_inbox (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	consumer VARCHAR(129) NOT NULL, 
	"key" VARCHAR(200) NOT NULL, 
	handled_at DATETIME NOT NULL, 
	CONSTRAINT nsq_inbox_once UNIQUE (consumer, "key")
);
INSERT INTO "nsq_inbox" VALUES(1,'orders/shop','order-1','2026-11-25 23:10:55.036049');
INSERT INTO "nsq_inbox" VALUES(2,'orders/shop','Order-1','2026-11-25 23:10:55.036049');
INSERT INTO "nsq_inbox" VALUES(3,'orders/shop','naïve ','2026-11-25 23:10:55.036049');
CREATE TABLE nsq_outbox (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	topic VARCHAR(64) NOT NULL, 
	body BLOB NOT NULL, 
	headers JSON, 
	"key" VARCHAR(200) NOT NULL, 
	scheduled DATETIME, 
	created_at DATETIME NOT NULL, 
	attempts INTEGER NOT NULL, 
	retry_at DATETIME NOT NULL, 
	failed_at DATETIME, 
	last_error TEXT NOT NULL
);
INSERT INTO "nsq_outbox" VALUES(1,'orders',X'706C61696E','{}','a096ea6d480c74bd93f1fe5e4c2e31ef',NULL,'2026-11-25 23:10:55.034408',0,'2026-11-25 23:10:55.034408',NULL,'');
INSERT INTO "nsq_outbox" VALUES(2,'orders',X'747261636564','{"trace": "Gr\u00fc\u00dfe"}','b590f1e53be15df90297f6e7594ccaa8',NULL,'2026-11-25 23:10:55.035689',0,'2026-11-25 23:10:55.035689',NULL,'');
INSERT INTO "nsq_outbox" VALUES(3,'orders',X'6C61746572','{}','48433289e6ee53ec631b1c775bd9ba35','2026-11-25 23:11:00.035920','2026-11-25 23:10:55.035928',0,'2026-11-25 23:11:00.035920',NULL,'');
CREATE INDEX ix_nsq_outbox_key ON nsq_outbox ("key");
CREATE INDEX nsq_outbox_due ON nsq_outbox (failed_at, retry_at, id);
CREATE INDEX ix_nsq_inbox_handled_at ON nsq_inbox (handled_at);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('nsq_outbox',3);
INSERT INTO "sqlite_sequence" VALUES('nsq_inbox',3);
COMMIT;

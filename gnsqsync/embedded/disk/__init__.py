"""The disk queue of the embedded nsqd, in the files of nsqd's own queue, go-diskqueue 1.1.0.

``queue`` writes, reads and syncs one queue. ``start`` finds the positions at which a queue goes on.
``reader`` finds the messages of one file, even of a damaged one. ``records`` and ``positions`` are
the formats. ``files`` has the operations on files, which tests replace. No module here knows
gevent, a clock, a topic or a channel.

The embedded nsqd and nsqd take over each other's files, after a clean stop or a crash. This queue
keeps messages that nsqd loses or repeats:

* A damaged record costs that record. nsqd gives up all unread messages of the file. This reader
  looks for the next record. nsqd writes the time of publishing twice into each record, as a
  timestamp and in the id; a record is recognized by the two equal times. If one byte of a length is
  wrong, the message is whole and is delivered. A damaged file is renamed to ``.bad`` after it has
  been read, as nsqd does.
* A record that was cut off is not padded with zeros and delivered. Writing goes on in a new file.
* If the meta file is missing or broken, all data files are read again. nsqd overwrites them.
* Impossible positions in the meta file are repaired at the start. nsqd hangs or spins.
* Messages that a killed nsqd wrote after its last sync count in the depth from the start.
* A file that was read to its end before the next file was begun is deleted. nsqd keeps it as
  ``.bad``.
* A file is bad only if its content is damaged or the disk cannot read it. After any other error,
  such as too many open files, the queue tries again later.
* A record that was written in part, because the disk is full, is cut off at once.
* A clean stop also fsyncs the last data.
"""

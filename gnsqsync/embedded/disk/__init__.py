"""The disk queue of the embedded nsqd: files that nsqd's own queue, go-diskqueue 1.1.0, reads too.

``queue`` writes, reads and syncs one queue; ``start`` finds out where it stood; ``reader`` finds
the messages of one file, also of a damaged one; ``records`` and ``positions`` are the formats;
``files`` are the operations on files, which tests replace. Nothing here knows gevent, a clock, a
topic or a channel.

Either nsqd takes over the files of the other, after a clean stop or a crash. Where nsqd loses or
repeats messages, this queue does not:

* A damaged record costs that record. nsqd gives up all unread messages of the file. Here the
  reader looks for the next record: an nsqd writes into each the time of publishing twice, once in
  clear and once in the id, and that tells a record from other bytes. If one byte of a length is
  wrong, the message is whole, and is delivered. A file with a damage is kept as ``.bad`` when it
  has been read, as nsqd keeps it.
* A record that was cut off is not padded with zeros and delivered. Writing goes on in a new file.
* Without a meta file, or with a broken one, everything in the data files is read again. nsqd
  overwrites it.
* Positions in the meta file that cannot be right are repaired at the start. nsqd hangs or spins.
* Messages behind the positions of the meta file, as a killed nsqd leaves them, count in the depth
  from the start.
* A file that was read to its end before the next one was begun is deleted. nsqd keeps it as
  ``.bad``.
* Only what a file holds makes it bad, and a disk that cannot read it. After any other error, such
  as too many open files, the queue reads on when it can.
* A record that was written in part, because the disk is full, is cut off again at once.
* The last data is fsynced at a clean stop, too.
"""

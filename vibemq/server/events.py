# SPDX-License-Identifier: Apache-2.0
"""The names of what the log says: by these a collector counts and an alert fires, whatever becomes of the words.

An event is found by the words before its numbers and names are put in, so whoever changes those changes them here, too;
whoever adds a line adds it here.  What an operator does about each warning and error stands in
examples/monitoring/README.md.  tests/server/test_events.py reads every call in the broker and keeps both complete.
"""

from __future__ import annotations

import logging

#: Of what no line of ours says: by a library, or by Python itself.
OTHER = "other"
#: A reporter names these itself (vibemq/once_a_minute.py), because its words come from many places.
NAMED_BY_REPORTERS = ("peer_refused",)
#: Lines that are whole events by themselves (vibemq/broker/audit.py).
NAMED_BY_LOGGERS = {"vibemq.audit": "audit"}

EVENTS: dict[str, tuple[str, ...]] = {
    # ---- the broker and its processes ----
    "broker_ready": ("ready: %d workers, %s, data in %s",),
    "broker_stopping": ("%s: stopping; workers have %g s to finish",),
    "broker_stopped": ("stopped",),
    "advertised_address": ("stream clients are told to connect to %s",),
    "ready_line_not_written": ("the ready line could not be written to standard output: %s",),
    "runs_as_root": ("running as root; server.user (--user) names an account to continue as",),
    "oom_score_kept": (
        "if memory runs out, the kernel may end the supervisor before a worker: /proc is read-only for it",
    ),
    "clock_stepped": (
        "the wall clock was set %s by %.0f s: nothing is removed for its age by this clock for %.0f s, unless "
        "the kernel says that it is synchronised (`timedatectl`) and it is less than a day ahead",
    ),
    "clock_not_kept": ("%s cannot be written: after the next start the clock is not believed at once: %s",),
    "log_lines_dropped": ("%d lines of this log were dropped: nobody read standard error, or its disk stalled",),
    "superuser_made": ("user %r is the superuser, with the password of the configuration",),
    "data_directory_open_to_others": (
        "%s may be entered by other accounts; `chmod 700 %s` keeps messages private",
        "%s is open to other accounts and has other files; give messages a directory of their own",
    ),
    "identity_made_again": (
        "%s was damaged and is created again; Spark on this machine reads over TCP until it plans again",
        "%s was missing and is created again; a bucket with the old identity refuses it",
    ),
    "data_directory_in_use": ("%s is in use by pid %s or its workers; waiting up to %g s for them to end",),
    "file_size_limit_low": (
        "a file may have at most %d bytes here, and segments have up to %d: at that size messages are "
        "refused; raise the limit (`ulimit -Hf`, LimitFSIZE=) or lower the sizes of segments",
    ),
    "lease_waited": (
        "%s: the broker with pid %d on %s did not give its lease back, and the lock does not tell whether it has the "
        "directory through another mount; waiting %g s for it to renew the lease",
    ),
    "lease_lost": (
        "%s: this one ends at once with exit code %d, and syncs nothing",
        "the lease is not given back: %s",
    ),
    "lease_not_written": ("%s cannot be written: %s; the start goes on, since consuming makes room",),
    "lease_not_renewed": (
        "the lease in %s is not renewed: %s",
        "the lease in %s is not given back: %s",
        "the lease in %s is not given back: its renewal has waited for the disk for %g s",
    ),
    "data_directory_moved": (
        "%s was written through another mount, or is a copy: all streams are recovered as after a power cut",
    ),
    "file_limit_low": (
        "only %d files may be open in each process: not enough for %d connections and their streams; "
        "raise the limit (`ulimit -Hn`, LimitNOFILE=) or lower server.connections_max",
    ),
    "service_manager_not_told": ("the service manager at %s cannot be told: %s",),
    "process_ready": ("%s is ready, pid %d, after %.0f ms", "the management API is ready%s"),
    "process_ended": ("%s, pid %d, %s",),
    "process_died": ("%s, pid %d, %s after %.1f s",),
    "process_restart_delayed": ("%s %s; it is started again in %.1f s",),
    "process_failed": ("%s failed",),
    "process_killed": (
        "%s, pid %d, is killed: it has not ended yet",
        "%s, pid %d, is killed: it did not end within %g s",
        "%s, pid %d, is killed: %s",
    ),
    "rolling_restart": (
        "a rolling restart of %d workers begins",
        "%s, pid %d, %s and is replaced",
        "the rolling restart is done",
    ),
    "worker_paused": ("this worker was paused for %.1f s; timeouts waited %d ms, until all input had been read",),
    "input_not_all_read": (
        "this worker was paused for %.1f s; %d s later not all input has been read, but timeouts go on",
    ),
    "memory_refused": (
        "%s: closed: the kernel refused memory that it needed; raise the limit of memory, or lower "
        "server.connections_max",
    ),
    "thread_refused": (
        "a thread for %s was refused (%d run): %s; raise pids.max, `ulimit -u` or the limit of memory",
    ),
    "log_waits_for_disk": (
        "stream %s: %d bytes of messages wait for a slow disk: its publishers are not read until they are written",
    ),
    "file_call_slow": (
        "%s: %s has taken %.1f s and goes on; %d such calls wait",
        "%s: %s took %.1f s",
    ),
    "worker_hung": ("%s, pid %d, is killed and replaced: %s",),
    "worker_not_answering": ("a worker is left out: %s", "an answer for the admin process was dropped: %s"),
    "worker_connections_left": ("%d connections did not end within %.1f s: %s%s",),
    "supervisor_died": (
        "the supervisor is gone: finishing and ending",
        "ends at once: the supervisor has died",
    ),
    "configuration_refused": ("SIGHUP: the configuration is kept as it was: %s",),
    "configuration_read": ("SIGHUP: log level is %s",),
    "configuration_waits_for_restart": (
        "SIGHUP: these options changed and take effect only at the next start: %s",
        "SIGHUP: nothing to read again",
    ),
    "maintenance_began": ("maintenance: newcomers are refused, and %d connections sent away",),
    "maintenance_ended": ("the end of maintenance: newcomers are let in",),
    "internal_error": (
        "%s: closed by an error of ours",
        "%s: while closing",
        "%s: a command failed by an error of ours",
        "%s %s failed by an error of ours",
        "retention failed by an error of ours",
        "%s: hub connection closed by an error of ours",
        "hub connection %s: closed by an error of ours",
        "a connection could not be accepted",
        "a question of the admin process could not be answered",
        "after a helper thread's work",
        "after a timer",
        "group %r: a member that cannot be told leaves it",
        "queue %s: a letter from worker %d",
        "queue %s: after a worker was replaced",
        "queue %s: while dead-lettering",
        "queue %s: while dispatching",
        "queue %s: while looking after it",
        "queue %s: while telling it of its log",
        "stream %s: while looking after it",
        "stream %s: while persisting",
        "the listeners cannot be watched for now",
        "while answering %r",
        "while heeding what other processes and threads asked for",
        "while reading from a listener or another process",
        "in the object store",
    ),
    # ---- disk and memory ----
    "disk_alarm": (
        "disk alarm: a write found no room at %s: no messages are taken",
        "disk alarm: a file at %s has reached the size of %d bytes that this process may write (RLIMIT_FSIZE): "
        "no messages are taken for %g s",
        "disk alarm: fewer than %d files can be made at %s, whose inodes are used up: no messages are taken",
        "disk alarm: %d bytes are free at %s, %d are needed: no messages are taken (store.disk_free_min_bytes)",
    ),
    "disk_alarm_over": ("the disk alarm is over: %d bytes are free at %s, publishers go on",),
    "memory_alarm": ("memory alarm: %d bytes are used, at most %d may be",),
    "memory_alarm_over": ("the memory alarm is over: %d bytes are used, publishers go on",),
    "publishes_refused": ("publishes are refused, the last one of %s: %s",),
    "rates_unknown": (
        "rates cannot be measured now: %s",
        "rates cannot be measured, by an error of ours: %r",
        "it was raised here",
    ),
    "metadata_kept_open": ("%s is open in another process: no digest of it is kept",),
    "metadata_log_not_emptied": ("the write-ahead log of the metadata is not emptied: %s",),
    "metadata_check_damaged": ("%s: copy %d of %d in it is damaged",),
    "disk_space_unknown": ("free space at %s cannot be asked: %s",),
    "reserve_used": ("the disk is full: the reserve is being used, %d bytes of it are left",),
    "reserve_not_filled": (
        "the reserve in %s cannot be filled: %s",
        "the reserve in %s cannot be made: %s",
        "the reserve at %s cannot be used: %s",
        "%s is nearly full: there is no room for the reserve now",
    ),
    # ---- who comes in ----
    "connections_full": (
        "%d connections, no more are accepted for now: %s",
        "no HTTPS connection can be accepted now: %s",
        "%d connections to the management API: the oldest idle one is closed for a new one",
    ),
    "connection_over_limit": ("%s: not let in: %s",),
    "connection_closed": ("%s: closed: %s",),
    "connection_closed_by_administrator": ("%s: closed by an administrator: %s",),
    "connection_not_closed": ("%s is not closed: %s",),
    "connection_not_handed_over": (
        "%s: could not be handed to worker %d: %s",
        "a connection was lost on its way here: too many files are open",
    ),
    "connection_without_tls": (
        "%s: speaks without TLS to the TLS port, closed",
        "%s: no TLS handshake for HTTPS: %s",
    ),
    "login_refused": (
        "%s: user %.*r may only come from this machine",
        "%s: login refused for user %.*r",
        "%s: login refused for user %.*r, %s",
        "%s: login of user %.*r over HTTP refused",
        "a token was refused: %s",
        "%s: login with malformed data: %s",
    ),
    "token_keys_missing": ("the keys for tokens cannot be had from %s: %s",),
    "token_expired": ("%s: the token of user %r has expired, closed",),
    "logins_held_off": ("%s: too many logins over HTTP have failed, refused for %d s",),
    "body_refused": (
        "%s: a body of %d bytes over HTTP was refused: all together have %d bytes at most",
        "lines over HTTP were refused: %d bytes of them are being stored, the most that may be",
        "lines over HTTP were refused: a worker stores those of %d requests, the most that it may",
    ),
    "page_login": ("%s: user %r has logged in at the management page",),
    "login_impossible": (
        "%s: its login cannot be checked: %s",
        "%s: a login could not be checked",
        "user %r cannot log in by challenge, only with the password, over TLS or from this machine, "
        "until the password is set anew: it was imported, or set by an older version",
    ),
    "virtual_host_refused": ("%s: virtual host %r %s",),
    "access_revoked": (
        "%s: user %r was deleted, closed",
        "%s: came when nobody had to log in, closed",
        "%s: virtual host %r is closed to user %r now",
        "%s: user %r may not use stream %s any more",
    ),
    "permission_refused": (
        "%s: user %r lacks the permission %s for %r",
        "%s: user %r may not %s %r",
        "%s: user %r may not see all of super stream %r",
    ),
    "peer_said": ("%s: the peer says: %.*s",),
    "hub_connection_over": ("%s: over: %s",),
    "consumer_update_unasked": ("%s: an answer to no question of ours, %#x",),
    "consumer_update_refused": ("%s: ConsumerUpdate answered with %s",),
    "subscription_option_ignored": ("%s: single-active-consumer is %r, and only 'true' switches it on",),
    "plan_too_large": ("%s: PlanReads of %d streams, at most %d at once",),
    "command_failed": (
        "%s: a command failed: %s",
        "%s: %s %s: %s",
        "%s: consumer of %s: %s",
        "metadata of stream %s cannot be read: %s",
    ),
    # ---- who changes what ----
    "change_made": (
        "%s, by %s",
        "%s %s%s, by %s",
        "user %r added, by %r over the native door",
        "user %r removed, by %r over the native door",
        "user %r has a new password, by %r over the native door",
        "user %r may %s where the queue is %r, by %r over the native door",
        "user %r has no permission by %r any more, by %r over the native door",
        "%s: user %r changes queue %s: %s",
    ),
    "audit_not_written": ("the audit log %s cannot be written: %s",),
    "queue_options_changed": ("queue %s: its options are changed: %s",),
    "api_request_failed": ("%s %s failed: %s",),
    "access_unreadable": ("users and permissions cannot be looked at: %s",),
    "access_change_not_told": ("workers learn of a changed right within a second only: %s",),
    "policy_not_applied": (
        "stream %r: a policy is not applied yet: %s",
        "queue %s: a changed policy cannot be applied: %s",
        "queue %s cannot be opened for its changed options: %s",
        "options of queues that were changed cannot be looked at: %s",
    ),
    # ---- TLS ----
    "tls_library": ("TLS is done by %s",),
    "tls_certificate_read": ("the TLS certificate %s from %s; it is valid until %s",),
    "tls_certificate_suspicious": ("the TLS certificate %s from %s; %s",),
    "tls_certificate_ends": ("%s ends on %s, in %d days: after that %s",),
    "tls_certificate_ended": ("%s ended on %s: %s until it is renewed and SIGHUP sent",),
    "tls_certificate_kept": (
        "the TLS certificates are kept as they were",
        "the TLS certificates are kept as they were: %s%s",
    ),
    "tls_client_certificate_unreadable": ("a client's certificate cannot be read for the names in it: %s",),
    "tls_revocation_list_read": ("%s has revoked %d certificates, says %s",),
    "tls_revocation_list_missing": (
        "there is no list of the certificates that %s has revoked, so all of its client certificates are refused; "
        "put one into tls.client_crl",
    ),
    # ---- streams ----
    "stream_append_failed": ("stream %s: not persisted: %s",),
    "stream_append_deleted": ("stream %s: not persisted, because it was deleted meanwhile",),
    "stream_sync_failed": ("stream %s: fdatasync failed, its segment is closed: %s",),
    "stream_unusable": (
        "stream %r (%s) cannot be used: %s",
        "stream %s cannot be opened: %s",
        "stream %s cannot be planned: %s",
        "stream %s: cannot be read: %s",
        "stream %s: cannot be read, its consumer on %s is told: %s",
    ),
    "stream_damaged": (
        "stream %s: a damaged chunk is passed over: %s",
        "stream %s: passed over: message %d and those behind it that cannot be read either",
        "stream %s: passed over: %s",
    ),
    "read_ahead_failed": (
        "stream %s: while reading ahead: %s",
        "while reading ahead: %s",
        "while unpacking a sub-batch: %s",
    ),
    "sub_batch_unreadable": ("a sub-batch cannot be unpacked: %s",),
    "message_too_large_for_reader": (
        "message %d of %s is larger than what %s is sent, and passed over, as all such will be",
    ),
    "retention_applied": (
        "stream %s: retention dropped %d segments, %d bytes",
        "stream %r: retention dropped %d segments, %d bytes",
        "%s: %d segments, %d bytes, are in the object store only now",
    ),
    "retention_failed": (
        "stream %s: retention failed: %s",
        "retention of stream %r failed: %s",
        "retention was not applied: %s",
    ),
    "offset_not_stored": ("%s: offset %d of %r on %s not stored: %s",),
    "offsets_damaged": (
        "%s: %d stored offsets are damaged and count as not stored",
        "stream %r: %s is missing: consumers find no stored offset; to have these offsets again, stop the broker "
        "and restore this file from a backup",
    ),
    "publisher_names_full": (
        "stream %s: %d publisher names are kept; the one that published longest ago was evicted for %r",
        "stream %s: publisher %r is refused: %d publisher names are kept, and all are names of connected publishers",
    ),
    "publisher_table_rebuilt": (
        "%s was damaged, and its publishing ids were rebuilt from the log: nothing is lost; check the disk "
        "and the memory of this machine",
    ),
    "offsets_full": ("%s: more than %d offset references: the one stored longest ago made room for %r",),
    # ---- queues ----
    "queue_lost_messages": ("queue %s: %s",),
    "queue_full": ("queue %s: it is full (max_messages %d), and refuses new messages (%s)",),
    "queue_message_fails": (
        "queue %s: %d deliveries of message %d failed; the queue has no limit (attempts_max), "
        "so it is delivered again after each back-off; %d such messages in all",
    ),
    "queue_consumer_overdue": (
        "queue %s: a consumer did not settle message %d within %d ms; that delivery counts "
        "as failed, and %d others go to other consumers uncounted",
    ),
    "queue_message_unreadable": (
        "queue %s: message %d cannot be read: %s",
        "queue %s: message %d cannot be read now: %s",
        "queue %s: message %d, and those behind it that cannot be read either: %s",
        "queue %s: %s: its messages are passed over",
        "queue %s: cannot be read: %s",
    ),
    "queue_stalled": (
        "queue %s: nothing can be handed out now: %s",
        "queue %s: what consumers say of message %d waits: %s",
        "queue %s: settled segments cannot be dropped: %s",
    ),
    "queue_message_unsuited": (
        "queue %s: message %d cannot be given to a consumer of the %s door, "
        "for which it is too large or has a form that cannot be had there, %s",
        "queue %s: messages that could be given to none of the consumers that tried wait for one "
        "that can take them: %d, from message %d on; the disk keeps what came after it until then",
    ),
    "queue_dead_letters_wait": (
        "queue %s: message %d cannot be dead-lettered now: %s",
        "queue %s: its dead-letter queue %s cannot be opened: %s",
        "queue %s: its dead-letter queue cannot be made: %s",
        "%s: dead-letter queue %s cannot be made: %s",
    ),
    "queue_without_home": (
        "queue %s: has no home now, so nothing leaves it by itself: %s",
        "queue %s: has no home now, so no message that is too old or too many leaves it: %s",
        "queues that need a home cannot be listed: %s",
    ),
    "queue_member_gone": (
        "queue %s: subscriber %s did not return in time, and %d of its copies are %s",
        "queue %s: more than %d members are away: the copies of those that vanished first leave it",
    ),
    "queue_member_unrecorded": (
        "queue %s: a member has no record, so it loses its copies if a worker ends: %s",
        "queue %s: more than %d members: those beyond lose their copies if a worker ends",
    ),
    "queue_member_damaged": (
        "queue %s: the record of an absent member is damaged, so all messages from %d on are delivered to it again",
        "%s: the header is damaged and written again; the members are kept",
    ),
    "queue_ledger_damaged": (
        "queue %r: %s/ledger is damaged; its words are restored or begin anew, and no message is lost",
        "queue %r: %d files of its ledger are missing, the first is %s/%020d.ledger",
        "queue %s: %d files of its ledger are missing, the first is %s/%020d.ledger",
        "queue %r: its ledger in %s is damaged: %d messages, the first at offset %d, are delivered again",
        "queue %s: its ledger is damaged: %d messages, the first at offset %d, are delivered again",
    ),
    "queue_ledger_not_synced": ("queue %s: its ledger is not synced: %s",),
    # ---- transactions ----
    "transaction_appended": ("batch %d of application %r, which was decided before, is appended: %d messages",),
    "transaction_waits": (
        "batch %d of application %r is decided and not all of it is appended yet: %s",
        "batch %d of application %r: %s",
        "%s: transaction %s cannot be opened: %s",
        "transactions cannot be looked after: %s",
        "staged transactions cannot be inspected: %s",
        "what is staged in %s cannot be removed now: %s",
    ),
    "transaction_lost": (
        "batch %d of application %r: %d places of what was staged are no messages, and are left out",
        "stream %r was deleted after batch %d of application %r was decided for it",
        "batch %d of application %r: the rest of transaction %s, of %d blocks, is lost: %s",
    ),
    "transaction_thrown_away": ("transaction %s of application %r is older than %d s and not decided: thrown away",),
    "transactions_full": ("staged transactions exceed their limit: %s",),
    "application_forgotten": (
        "more than %d applications: %r in vhost %r makes room for %r, and its last batch %d is forgotten",
    ),
    # ---- the start after a crash ----
    "recovery_done": (
        "recovery: %d streams so far, %d bytes checked",
        "recovered %d streams in %.2f s, %d bytes checked",
        "%d streams more are looked at beside the work, and each when it is first used",
        "recovered %d streams beside the work in %.2f s, %d bytes checked",
        "removed %s, left over from an interrupted creation or deletion",
    ),
    "recovery_cut": (
        "stream %r: %s was cut at byte %d, because from there on it was not completely written; "
        "the %d bytes cut off are kept in %s",
        "stream %r: %s, %d bytes, cannot be read or lies behind what was lost; it is kept as %s",
        "stream %r: %d cuts in all, %d bytes",
    ),
    "recovery_segment_missing": (
        "stream %r: %s is missing: its messages %d to %d are lost, unless it is restored from a backup",
    ),
    "recovery_damage": (
        "stream %r: %s is damaged from byte %d on, for %d bytes: its messages %d to %d cannot be read, and all "
        "others are kept; to have them again, stop the broker and restore this file from a backup",
        "stream %r: damaged chunks in %d places in all",
        "stream %r: %s is damaged, missing or of an older version; it is rebuilt from the segments, and no message "
        "is lost",
    ),
    "stop_not_synced": (
        "stream %r could not be synced at the stop: %s",
        "%d streams were not synced within %g s at the stop",
    ),
    "recovery_from_object_store": (
        "stream %r: %d segments were not completely written here; they are read from the object store",
    ),
    "recovery_queue_again": (
        "queue %r: its settled messages are unknown; all kept ones are delivered again",
    ),
    "recovery_offset_set_back": (
        "stream %r: %r had stored offset %d, and messages end before %d: it is set back",
        "stream %r: its stored offsets cannot be compared with its messages: %s",
    ),
    "recovery_directory_missing": ("stream %r: its directory %s is missing; an empty one is made",),
    "recovery_directory_unknown": ("%s belongs to no stream; it is kept, because it may hold messages",),
    # ---- the object store ----
    "remote_object_damaged": (
        "%s: its undamaged chunks are served; restore it from a version or a copy of the bucket",
        "%s: %s; it is rebuilt from its segment, here and not in the bucket",
    ),
    "remote_epoch": (
        "epoch %d of broker %r in %s",
        "epoch %d of broker %r ends before write-ahead object %d",
        "%s is the bucket of %s from now on, cluster %s",
        "another archiver of this broker has taken over: %s",
    ),
    "remote_deposed": (
        "the archiver ends: %s",
        "another broker has this one's place in %s: this one ends with exit code %d and must not be started again "
        "as it is; end the other one, and start with an empty data directory: all that was confirmed comes back",
        "another broker has taken this one's place in %s: %s",
    ),
    "remote_away": (
        "the object store has taken nothing for %.0f s: %s; publishers to streams of durability remote wait, with "
        "%d objects on their way, and it is tried again until it succeeds: %s",
        "the object store does not answer yet: %s",
        "an answer of the object store may be incomplete, and is requested again: %s",
        "while restoring, the object store is asked again: %s",
        "no epoch can be taken, so nothing of durability remote is confirmed: %s",
        "in the object store: %s",
    ),
    "remote_back": ("the object store answers again, after %.0f s; what waited is confirmed as it arrives there",),
    "remote_read_failed": ("block %d of %s is not fetched: %s",),
    "remote_reader_not_told": ("the archiver could not be told where a reader is: %s",),
    "remote_cache_room": ("all blocks of a segment make room, not only one: %s",),
    "remote_stub_made_again": ("%s was damaged: it is made again from the name of object %s",),
    "remote_stub_damaged": ("stream %r: a damaged stub is not made again: %s",),
    "remote_objects_kept": (
        "objects of earlier epochs stay in the bucket: some were not whole at a start, as %s says; move that "
        "file away once nobody wants to put them back",
    ),
    "remote_object_not_created": (
        "a write-ahead object was not created: %s",
        "the check for a newer epoch failed: %s",
    ),
    "remote_stream_not_sent": (
        "stream %r cannot be sent to the object store: %s",
        "segments of stream %r are not sent up yet: %r",
    ),
    "remote_segment_repaired": ("stream %r: damage on this disk is repaired from the object store: %s",),
    "remote_not_deleted": (
        "what is superfluous in the object store is not deleted yet: %s",
        "what is below %s of a deleted stream stays: `vibemq remote prune` deletes it: %s",
        "probe objects below %s stay in the bucket: %s",
    ),
    "remote_late_segment": ("stream %r: %s was uploaded by a deposed broker, and is not used",),
    "remote_not_compared": ("%s is not compared with the object store: %s",),
    "remote_object_lost": (
        "object %s is missing in the bucket: those messages cannot be read",
        "objects are missing in the bucket between %s and %s",
        "stream %r: segments with offsets %d to %d are missing in the bucket between %s and %s",
        "stream %r: %s is not the segment that was confirmed; kept as %s",
        "a write-ahead object cannot be restored: %s",
        "a write-ahead object is no seal: %s",
        "a snapshot of the metadata cannot be used: %s",
        "the broker that has taken an epoch is unknown: %s",
        "the objects that an earlier epoch was deleting are unknown: %s",
        "a change of the metadata may be a fence, so it is not deleted: %s",
        "the size of a segment is not known for sure: %s",
        "what a stream knows of its publishers cannot be restored: %s",
        "%s is damaged, and the bucket has no such segment; kept as %s",
        "%s; %s",
    ),
    "confirmed_offset_not_written": ("stream %r: its confirmed offset cannot be written: %s",),
    "remote_members_lost": (
        "queue %r: %d messages at offsets %d to %d that one member had acknowledged do not come again to members "
        "that had not, because the bucket has no members of that fan-out",
    ),
    "remote_restored": (
        "%s is empty: restoring broker %r of cluster %s",
        "%s, and were not confirmed: an object before them was never created",
        "restored %d streams from the object store in %.1f s: %d segments there, %d bytes of chunks brought back",
    ),
}  # fmt: skip

_NAMES = {words: name for name, all_words in EVENTS.items() for words in all_words}


def event_of(record: logging.LogRecord) -> str:
    """What kind of event a line of the log is about."""
    named: str = getattr(record, "event", "")  # a reporter has said so
    return named or NAMED_BY_LOGGERS.get(record.name) or _NAMES.get(getattr(record, "template", record.msg), OTHER)

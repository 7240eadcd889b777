// Package webhook is events, subscriptions and deliveries: what a customer's
// endpoint, a customer's client and the operator can rely on.
//
// # What is stored
//
// outbox_events: one row per committed business fact, immutable. Its sequence
// is the commit order and the feed's cursor. webhook_subscriptions: a
// customer's URLs, with the secrets that sign for them, sealed, in
// webhook_secrets. webhook_deliveries: one row per (event, subscription) pair.
// webhook_attempts: one row per HTTP request. webhook_rates: outcomes by five
// minutes, so that no page has to count attempts. webhook_missed_ranges: which
// stretches of the feed a subscription has missed while it was disabled.
// webhook_replays: jobs that send many deliveries again, or make those of what was
// missed. usage_days: a customer's calls by day; threshold_crossings: which limits
// were told of as nearly used up.
//
// Owners are told of what they cannot hear at their endpoints by mail: Notices
// writes it, package mail keeps and sends it.
//
// # The walk of an event
//
//	state change + Outbox.Publish     one transaction of whoever changes state
//	      │
//	fanout.stepIn                     match subscriptions, insert deliveries, mark published; in steps
//	      │
//	queue.take ─▶ Sender.Send         read what is due, judge the address, sign, POST; nothing is written
//	      │
//	finisher.write                    attempt, delivery, streak and rates of many results; one transaction
//
// # What is atomic
//
// An event and the state that it reports. A step of the fan-out: its
// deliveries and how far it has come. An attempt and everything that follows
// from it. No transaction is open during an HTTP request.
//
// # What a crash leaves
//
// Deliveries whose request was under way are pending, as they were: what is in
// flight is in memory only, and the lock file makes one process the file's only
// sender. The next start sends them again, under the same event id and with the
// same bytes. So delivery is at least once, and never exactly once.
//
// # What stands between the customer's URL and the operator's network
//
// Guard, in three places (the URL, its name's addresses, the address that is
// dialled), and Sender, which holds the only HTTP transport for such URLs. An id
// in a row authorizes nothing: whom a delivery goes to is read, with the
// customer's rights, when it is claimed.
package webhook

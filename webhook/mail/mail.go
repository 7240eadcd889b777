// Package mail is mails to customers: queued in the file, handed to the
// operator's SMTP server.
//
// What is stored: one row per mail in mails, as it was rendered when it was
// queued. What is atomic: a mail and what it reports. An attempt is written down
// with the time of the next one before it begins; no transaction is open while
// it is under way.
//
// What a crash leaves: mails that are pending, or that the server has taken and
// the file does not know of. Those are sent again at the time that was written
// down, under the same Message-ID: at least once.
//
// A mail without an address, or of a service without an SMTP server, is one
// line of the log. Addresses are never in the log, nor is what an SMTP server
// says, which may repeat them: of that only the codes.
package mail

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"jpintel/store"
)

// State is where a mail is in its life; the table's comment tells what each
// means.
type State string

// The states. All but pending are final.
const (
	StatePending State = "pending"
	StateSent    State = "sent"
	StateFailed  State = "failed"
	StateLogged  State = "logged"
)

// Mail is one mail to a customer.
type Mail struct {
	ID             string
	CustomerID     string
	SubscriptionID string // what it is about; "": no subscription
	Kind           string // for the log
	Recipient      string // "": the customer had no address
	Subject        string
	Body           string // plain text
	CreatedAt      time.Time

	seq      int64
	attempts int
}

// Queue writes a mail to a customer's contact address, as it is now, in the
// transaction of what it reports. ID, Recipient and CreatedAt are not read.
func Queue(tx *store.Tx, m Mail) error {
	c, err := store.GetCustomer(tx, m.CustomerID)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(`
		INSERT INTO mails (mail_id, customer_id, subscription_id, kind, recipient, subject, body, state, next_attempt_at_ms, created_at_ms)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9)`,
		tx.NewID("mail"), m.CustomerID, store.Nullable(m.SubscriptionID), m.Kind, store.Nullable(c.Email), oneLine(m.Subject), m.Body, string(StatePending), tx.NowMS()); err != nil {
		return fmt.Errorf("queueing a mail: %w", err)
	}
	return nil
}

// oneLine keeps a text from ending a header.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

// dueQuery finds the mail that has been due the longest.
const dueQuery = `
	SELECT mail_seq, mail_id, customer_id, COALESCE(subscription_id, ''), kind, COALESCE(recipient, ''), subject, body, attempts, created_at_ms
	FROM mails WHERE state = 'pending' AND next_attempt_at_ms <= $1 ORDER BY next_attempt_at_ms LIMIT 1`

// due returns the next mail, or nil where none is due.
func due(q store.Querier, now time.Time) (*Mail, error) {
	var m Mail
	var created int64
	err := q.QueryRow(dueQuery, now.UnixMilli()).Scan(&m.seq, &m.ID, &m.CustomerID, &m.SubscriptionID, &m.Kind, &m.Recipient, &m.Subject, &m.Body, &m.attempts, &created)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for mails: %w", err)
	}
	m.CreatedAt = store.FromMS(created)
	return &m, nil
}

// begin writes down that an attempt is made, and when the next one would be.
func (m *Mail) begin(tx *store.Tx) error {
	n, err := tx.Update(`
		UPDATE mails SET attempts = attempts + 1, next_attempt_at_ms = $1 WHERE mail_seq = $2 AND state = 'pending' AND attempts = $3`,
		tx.Now.Add(wait(m.attempts+1)).UnixMilli(), m.seq, m.attempts)
	if err != nil {
		return fmt.Errorf("beginning to send a mail: %w", err)
	}
	if n == 0 {
		return fmt.Errorf("mail %s is another's", m.ID) // unreachable: the file has one sender
	}
	return nil
}

// finish ends a mail; why is empty where it was sent.
func (m *Mail) finish(tx *store.Tx, state State, why string) error {
	_, err := tx.Exec(`
		UPDATE mails SET state = $1, last_error = $2, next_attempt_at_ms = NULL, finished_at_ms = $3 WHERE mail_seq = $4 AND state = 'pending'`,
		string(state), why, tx.NowMS(), m.seq)
	if err != nil {
		return fmt.Errorf("finishing a mail: %w", err)
	}
	return nil
}

// fail notes why an attempt failed that is followed by another.
func (m *Mail) fail(tx *store.Tx, why string) error {
	if _, err := tx.Exec(`UPDATE mails SET last_error = $1 WHERE mail_seq = $2 AND state = 'pending'`, why, m.seq); err != nil {
		return fmt.Errorf("noting why a mail was not sent: %w", err)
	}
	return nil
}

// DeleteFinished deletes mails that were finished before a time, rows at most,
// and returns how many.
func DeleteFinished(tx *store.Tx, before time.Time, rows int) (int64, error) {
	n, err := tx.Update(deleteQuery, before.UnixMilli(), rows)
	if err != nil {
		return 0, fmt.Errorf("deleting mails: %w", err)
	}
	return n, nil
}

const deleteQuery = `
	DELETE FROM mails WHERE mail_seq IN (
	  SELECT mail_seq FROM mails WHERE finished_at_ms < $1 ORDER BY finished_at_ms LIMIT $2)`

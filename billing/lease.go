package billing

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"jpintel/store"
)

const (
	// leaseTime is how long a claim holds: three requests, and time to spare.
	leaseTime = time.Minute
	// leaseMargin is what has to be left of it when a request ends, for its
	// result to be written.
	leaseMargin = 10 * time.Second
)

// commandOwner ends the lease owner's name of a CLI command.
const commandOwner = "/cli"

// longestLease is leaseTime in milliseconds, for SQL: a lease that seems to last
// longer was given before our clock was set back, and holds no more.
const longestLease = "60000"

// waits is the condition on operation o under which its turn has not come: $1 is
// now. Limits land in the order in which they were accepted, and so do freezing
// and thawing.
const waits = `
	EXISTS (SELECT 1 FROM partner_operations p WHERE p.customer_id = o.customer_id AND p.operation_id <> o.operation_id AND p.locked_until_ms BETWEEN $1 AND $1 + ` + longestLease + `)
	OR EXISTS (SELECT 1 FROM partner_operations p WHERE p.customer_id = o.customer_id AND p.operation_seq < o.operation_seq
	  AND p.status IN ('pending', 'failed_retryable', 'reconciling')
	  AND (o.action IN ('set_initial_limit', 'set_limit') AND p.action IN ('set_initial_limit', 'set_limit')
	    OR o.action IN ('freeze_group', 'thaw_group') AND p.action IN ('freeze_group', 'thaw_group')))
	OR EXISTS (SELECT 1 FROM partner_operations h WHERE h.hold_reason = '` + holdAuth + `')`

// claimable is the condition on operation o under which it can be claimed now.
const claimable = `o.action <> 'provision_customer' AND o.status IN ('pending', 'failed_retryable', 'reconciling') AND o.hold_reason IS NULL
	AND o.next_attempt_at_ms <= $1 AND (o.locked_until_ms IS NULL OR o.locked_until_ms NOT BETWEEN $1 AND $1 + ` + longestLease + `) AND NOT (` + waits + `)`

// claim (T2) takes the operation that has waited longest, or the one named, and
// nothing where none can be had. While the lease holds nobody else has it, nor
// another of the same customer. An attempt that its sender never finished counts
// as unknown from here on.
func claim(tx *store.Tx, owner, id string) (*Operation, error) {
	o, err := scanOperation(tx.QueryRow(`
		UPDATE partner_operations SET lock_token = lock_token + 1, locked_by = $2, locked_until_ms = $3
		WHERE operation_id = (SELECT o.operation_id FROM partner_operations o WHERE `+claimable+` AND ($4 = '' OR o.operation_id = $4)
		  ORDER BY o.next_attempt_at_ms, o.operation_seq LIMIT 1)
		RETURNING `+operationColumns, tx.NowMS(), owner, tx.Now.Add(leaseTime).UnixMilli(), id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("claiming an operation: %w", err)
	}
	n, err := tx.Update(`
		UPDATE operation_attempts SET finished_at_ms = $1, outcome = 'interrupted' WHERE operation_id = $2 AND finished_at_ms IS NULL`, tx.NowMS(), o.OperationID)
	if err == nil && n > 0 {
		o.UnknownCount += int(n)
		_, err = tx.Exec(`UPDATE partner_operations SET unknown_count = $1 WHERE operation_id = $2`, o.UnknownCount, o.OperationID)
	}
	if err != nil {
		return nil, fmt.Errorf("noting an interrupted attempt: %w", err)
	}
	return o, nil
}

// due reports whether there is something to claim, without writing.
func due(ctx context.Context, db *store.DB) (bool, error) {
	var found int
	err := db.Reader(ctx).QueryRow(`SELECT 1 FROM partner_operations o WHERE `+claimable+` LIMIT 1`, time.Now().UnixMilli()).Scan(&found)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// nextDue is when the next open operation is due; zero where there is none.
func nextDue(ctx context.Context, db *store.DB) (time.Time, error) {
	var at sql.NullInt64
	err := db.Reader(ctx).QueryRow(`
		SELECT MIN(next_attempt_at_ms) FROM partner_operations
		WHERE status IN ('pending', 'failed_retryable', 'reconciling') AND hold_reason IS NULL AND action <> 'provision_customer' AND next_attempt_at_ms > $1`,
		time.Now().UnixMilli()).Scan(&at)
	return orZero(at), err
}

// releaseLeases frees what earlier boots of the server have left claimed: the
// lock file says that they are gone. Those of commands run out by themselves.
func releaseLeases(tx *store.Tx, bootID string) (int64, error) {
	n, err := tx.Update(`
		UPDATE partner_operations SET locked_by = NULL, locked_until_ms = NULL
		WHERE locked_by IS NOT NULL AND substr(locked_by, -4) <> $1 AND substr(locked_by, 1, $2) <> $3`, commandOwner, len(bootID)+1, bootID+"/")
	if err != nil {
		return 0, fmt.Errorf("releasing leases: %w", err)
	}
	return n, nil
}

// release gives a claim back unused; the operation is due at the time given.
func (o *Operation) release(tx *store.Tx, next time.Time) error {
	return o.change(tx, `next_attempt_at_ms = $1`, next.UnixMilli())
}

package billing

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"jpintel/store"
	"jpintel/webhook"
)

// SpendRequest stops a customer's spending, or lets it go on.
type SpendRequest struct {
	Key        string `header:"Idempotency-Key" json:"-"`
	CustomerID string `path:"id" json:"-"`
	CauseRef   string `json:"cause_ref"` // why, such as a dispute's id: one operation for each
	ApprovedBy string `json:"approved_by"`
}

// maxCause is the longest cause_ref, in bytes.
const maxCause = 128

// Freeze begins to freeze a customer's group: its keys stop working.
func (s *Service) Freeze(ctx context.Context, r SpendRequest) (Accepted, error) {
	return s.spend(ctx, FreezeGroup, r)
}

// Thaw begins to end that.
func (s *Service) Thaw(ctx context.Context, r SpendRequest) (Accepted, error) {
	return s.spend(ctx, ThawGroup, r)
}

func (s *Service) spend(ctx context.Context, action Action, r SpendRequest) (Accepted, error) {
	if r.CauseRef == "" || len(r.CauseRef) > maxCause || strings.ContainsFunc(r.CauseRef, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return Accepted{}, store.Errorf(store.CodeInvalid, "cause_ref: want 1 to %d visible ASCII characters, such as a dispute's id", maxCause)
	}
	return s.begin(ctx, string(action), r.Key, r.CustomerID, r, func(_ *store.Tx, a *Account) (intent, error) {
		in := statusIntent(action, r.CustomerID, a.GroupID, r.CauseRef, 1)
		in.approvedBy = r.ApprovedBy
		return in, nil
	})
}

// groupOf is the group that a freeze, a thaw or a deletion is about: it is in the path.
func groupOf(o *Operation) string { return strings.TrimPrefix(o.request.Path, "/groups/") }

// frozen: the group's state, and with it that of every key, has changed.
func (r rules) frozen(ctx context.Context, tx *store.Tx, o *Operation, frozen bool) error {
	spend, from, to := "active", keyFrozen, keyActive
	if frozen {
		spend, from, to = "frozen", keyActive, keyFrozen
	}
	if err := setSpend(tx, o.CustomerID, spend); err != nil {
		return err
	}
	rows, err := tx.Query(`SELECT key_id FROM model_keys WHERE customer_id = $1 AND status = $2 ORDER BY key_id`, o.CustomerID, from)
	if err != nil {
		return fmt.Errorf("reading model keys: %w", err)
	}
	ids, err := store.Collect(rows, func(rows *sql.Rows) (id string, err error) { return id, rows.Scan(&id) })
	if err != nil {
		return fmt.Errorf("reading model keys: %w", err)
	}
	for _, id := range ids {
		if err := r.keyStatus(ctx, tx, o, id, to); err != nil {
			return err
		}
	}
	return nil
}

// keyStatus changes a model key's state and tells of it.
func (r rules) keyStatus(ctx context.Context, tx *store.Tx, o *Operation, keyID, status string) error {
	var before string
	if err := tx.QueryRow(`SELECT status FROM model_keys WHERE key_id = $1`, keyID).Scan(&before); err != nil {
		return fmt.Errorf("reading model key %s: %w", keyID, err)
	}
	if before == status {
		return nil
	}
	var version int64
	err := tx.QueryRow(`UPDATE model_keys SET status = $1, version = version + 1 WHERE key_id = $2 RETURNING version`, status, keyID).Scan(&version)
	if err != nil {
		return fmt.Errorf("changing model key %s: %w", keyID, err)
	}
	return r.tellKey(ctx, tx, o, webhook.KeyStatusChanged{CustomerID: o.CustomerID, KeyID: keyID, PreviousStatus: before, CurrentStatus: status, Version: version})
}

func (r rules) tellKey(ctx context.Context, tx *store.Tx, o *Operation, p webhook.KeyStatusChanged) error {
	_, err := r.outbox.PublishCaused(ctx, tx, p, o.OperationID)
	return err
}

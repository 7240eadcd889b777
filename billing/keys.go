package billing

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"jpintel/billing/modelgate"
	"jpintel/store"
	"jpintel/webhook"
)

// The states of a model key.
const (
	keyActive  = "active"
	keyFrozen  = "frozen"
	keyRevoked = "revoked"
)

// KeyRequest makes, replaces or revokes a model key.
type KeyRequest struct {
	Key        string `header:"Idempotency-Key" json:"-"`
	CustomerID string `path:"id" json:"-"`
	Action     string `json:"action"`  // create, rotate or revoke
	Purpose    string `json:"purpose"` // default: default; a customer has one usable key for each
	ApprovedBy string `json:"approved_by"`
}

var purposeForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,31}$`)

// ChangeKey begins to make, replace or revoke a customer's model key. A key that
// is replaced is revoked first: there is never more than one for a purpose.
func (s *Service) ChangeKey(ctx context.Context, r KeyRequest) (Accepted, error) {
	if r.Purpose == "" {
		r.Purpose = defaultPurpose
	}
	if !purposeForm.MatchString(r.Purpose) {
		return Accepted{}, store.Errorf(store.CodeInvalid, "purpose: want 1 to 32 small letters, digits or _ -")
	}
	if r.Action != "create" && r.Action != "rotate" && r.Action != "revoke" {
		return Accepted{}, store.Errorf(store.CodeInvalid, "action: want create, rotate or revoke")
	}
	return s.begin(ctx, "model-keys", r.Key, r.CustomerID, r, func(tx *store.Tx, a *Account) (in intent, err error) {
		usable, err := usableKey(tx, r.CustomerID, r.Purpose)
		if err != nil {
			return in, err
		}
		switch {
		case r.Action == "create" && usable != nil:
			return in, store.Errorf(store.CodeConflict, "purpose: there is a key for %s; rotate replaces it", r.Purpose)
		case r.Action == "create":
			in, err = newKey(tx, r.CustomerID, a.GroupID, r.Purpose)
		case usable == nil:
			return in, store.Errorf(store.CodeConflict, "purpose: there is no key for %s", r.Purpose)
		default:
			in, err = newRevoke(tx, r.CustomerID, usable.KeyID, r.Action == "rotate")
		}
		in.approvedBy = r.ApprovedBy
		return in, err
	})
}

// newKey is the next key of a purpose. While one is being made there is no
// other.
func newKey(q store.Querier, customer, group, purpose string) (in intent, err error) {
	version, open, err := versionAfter(q, customer, CreateKey, joined(group, purpose))
	if err != nil {
		return in, err
	}
	if open {
		return in, store.Errorf(store.CodeConflict, "purpose: a key for %s is being made", purpose)
	}
	return keyIntent(customer, group, purpose, version), nil
}

// newRevoke revokes a key; replace has its success make the next one.
func newRevoke(q store.Querier, customer, keyID string, replace bool) (in intent, err error) {
	version, open, err := versionAfter(q, customer, RevokeKey, keyID)
	if err != nil {
		return in, err
	}
	if open {
		return in, store.Errorf(store.CodeConflict, "the key %s is being revoked", keyID)
	}
	in = revokeIntent(customer, keyID, version)
	if replace {
		in.nextAction = CreateKey
	}
	return in, nil
}

// keySubject takes a key's intent apart: group and purpose.
func keySubject(subject string) (group, purpose string, err error) {
	group, purpose, ok := strings.Cut(subject, ":")
	if group, err = url.PathUnescape(group); err == nil {
		purpose, err = url.PathUnescape(purpose)
	}
	if err != nil || !ok {
		return "", "", fmt.Errorf("%q is not a key's intent", subject)
	}
	return group, purpose, nil
}

// ModelKey is a key of the upstream's as operators see it; never the key itself.
type ModelKey struct {
	KeyID           string `json:"key_id"`
	Purpose         string `json:"purpose"`
	Status          string `json:"status"`
	SecretAvailable bool   `json:"secret_available"` // it can be shown, once
	lost            bool   // there is no secret, and was never shown
}

// modelKeys reads a customer's keys, the oldest first.
func modelKeys(q store.Querier, customer string) ([]ModelKey, error) {
	rows, err := q.Query(`
		SELECT k.key_id, k.purpose, k.status, s.sealed IS NOT NULL, s.key_id IS NULL FROM model_keys k LEFT JOIN key_secrets s ON s.operation_id = k.operation_id
		WHERE k.customer_id = $1 ORDER BY k.created_at_ms, k.key_id`, customer)
	if err != nil {
		return nil, fmt.Errorf("reading model keys: %w", err)
	}
	return store.Collect(rows, func(r *sql.Rows) (k ModelKey, err error) {
		return k, r.Scan(&k.KeyID, &k.Purpose, &k.Status, &k.SecretAvailable, &k.lost)
	})
}

// usableKey is a customer's key for a purpose that is not revoked; nil: none.
func usableKey(q store.Querier, customer, purpose string) (*ModelKey, error) {
	keys, err := modelKeys(q, customer)
	for _, k := range keys {
		if k.Purpose == purpose && k.Status != keyRevoked {
			return &k, err
		}
	}
	return nil, err
}

// keyCreated keeps a new key and, sealed, its secret. Without the secret the key
// is of no use to anybody: the operator replaces it.
func (r rules) keyCreated(ctx context.Context, tx *store.Tx, o *Operation, a modelgate.Answer) error {
	group, purpose, err := keySubject(o.Intent)
	if err != nil {
		return err
	}
	_, err = tx.Exec(`
		INSERT INTO model_keys (key_id, customer_id, operation_id, purpose, key_version, status, version, created_at_ms)
		VALUES ($1, $2, $3, $4, $5, $6, 1, $7)`, a.TargetID, o.CustomerID, o.OperationID, purpose, o.IntentVersion, keyActive, tx.NowMS())
	if err != nil {
		return fmt.Errorf("keeping a model key: %w", err)
	}
	err = r.tellKey(ctx, tx, o, webhook.KeyStatusChanged{CustomerID: o.CustomerID, KeyID: a.TargetID, CurrentStatus: keyActive, Version: 1})
	if err != nil {
		return err
	}
	if a.Key == nil || a.Key.Secret == "" {
		return secretLost(tx, o, a.TargetID)
	}
	_, err = tx.Exec(`INSERT INTO key_secrets (operation_id, key_id, sealed, created_at_ms) VALUES ($1, $2, $3, $4)`,
		o.OperationID, a.TargetID, tx.Keys().Seal([]byte(a.Key.Secret), secretContext(o.OperationID, a.TargetID)), tx.NowMS())
	if err != nil {
		return fmt.Errorf("keeping a model key's secret: %w", err)
	}
	if o.ParentID == nil {
		return nil
	}
	return r.secretKept(tx, o, group)
}

// secretLost says on the record that a key is there whose secret is not.
func secretLost(tx *store.Tx, o *Operation, keyID string) error {
	const message = "the upstream made the key, but its secret never arrived: revoke it and make another"
	if err := note(tx, o.OperationID, system, string(PhaseSecretLost), keyID+": "+message); err != nil || o.ParentID == nil {
		return err
	}
	return block(tx, *o.ParentID, PhaseSecretLost, string(PhaseSecretLost), message)
}

// secretContext binds a sealed secret to its key and to what made it.
func secretContext(operationID, keyID string) string { return "model key " + operationID + " " + keyID }

// keyRevoked: the key is no more; one that replaces it comes next.
func (r rules) keyRevoked(ctx context.Context, tx *store.Tx, o *Operation) error {
	if err := r.keyStatus(ctx, tx, o, o.Intent, keyRevoked); err != nil || o.nextAction != CreateKey {
		return err
	}
	var purpose string
	if err := tx.QueryRow(`SELECT purpose FROM model_keys WHERE key_id = $1`, o.Intent).Scan(&purpose); err != nil {
		return fmt.Errorf("reading model key %s: %w", o.Intent, err)
	}
	account, err := withGroup(tx, o.CustomerID)
	if err != nil {
		return err
	}
	in, err := newKey(tx, o.CustomerID, account.GroupID, purpose)
	if err != nil {
		return err
	}
	if o.ParentID != nil {
		return next(tx, *o.ParentID, PhaseKey, in)
	}
	in.supersedes = o.OperationID
	_, _, err = accept(tx, in)
	return err
}

// RevealRequest asks for a model key's secret.
type RevealRequest struct {
	Key   string `header:"Idempotency-Key" json:"-"`
	KeyID string `path:"id" json:"-"`
}

// Revealed is the one time that a model key is shown.
type Revealed struct {
	KeyID      string `json:"key_id"`
	CustomerID string `json:"customer_id"`
	Secret     string `json:"secret"`
}

// Reveal returns a model key's secret, and keeps it no longer. The same
// Idempotency-Key gets the same answer for a day.
func (s *Service) Reveal(ctx context.Context, r RevealRequest) (answer Revealed, err error) {
	once, err := store.NewOnce("model-key-reveal", r.Key, r.KeyID)
	if err != nil {
		return answer, err
	}
	once.Secret = true
	err = s.DB.Write(ctx, func(tx *store.Tx) (err error) {
		answer, err = store.DoOnce(tx, once, func() (Revealed, error) { return reveal(tx, r.KeyID) })
		return err
	})
	return answer, err
}

func reveal(tx *store.Tx, keyID string) (answer Revealed, err error) {
	var operationID string
	var sealed []byte
	err = tx.QueryRow(`
		SELECT k.customer_id, k.operation_id, s.sealed FROM model_keys k JOIN key_secrets s ON s.operation_id = k.operation_id WHERE k.key_id = $1`, keyID).
		Scan(&answer.CustomerID, &operationID, &sealed)
	if errors.Is(err, sql.ErrNoRows) {
		return answer, store.Errorf(store.CodeNotFound, "model key %s not found, or its secret never arrived", keyID)
	}
	if err != nil {
		return answer, fmt.Errorf("reading a model key's secret: %w", err)
	}
	if sealed == nil {
		return answer, store.Errorf(store.CodeGone, "the secret of %s was shown before; rotate makes a new key", keyID)
	}
	secret, err := tx.Keys().Unseal(sealed, secretContext(operationID, keyID))
	if err != nil {
		return answer, fmt.Errorf("the secret of %s: %w", keyID, err)
	}
	if _, err := tx.Exec(`UPDATE key_secrets SET sealed = NULL, revealed_at_ms = $1 WHERE operation_id = $2`, tx.NowMS(), operationID); err != nil {
		return answer, fmt.Errorf("showing a model key: %w", err)
	}
	answer.KeyID, answer.Secret = keyID, string(secret)
	return answer, nil
}

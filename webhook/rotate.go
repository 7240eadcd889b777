package webhook

import (
	"context"
	"fmt"
	"time"

	"jpintel/store"
)

// maxOldSecrets is how many replaced secrets may sign beside the newest one.
const maxOldSecrets = 4

// RotateAnswer is the one time that a new secret is shown.
type RotateAnswer struct {
	SubscriptionID  string    `json:"subscription_id"`
	SigningSecret   string    `json:"signing_secret"`
	SecretShownOnce bool      `json:"secret_shown_once"`
	OldValidUntil   time.Time `json:"old_secrets_valid_until"` // when the last of the replaced ones stops signing
}

// RotateSecret gives a subscription a new secret. Replaced ones go on signing
// beside it, newest first, each for its full grace: a receiver that still has
// the first one does not break when it is rotated again.
func (s *Service) RotateSecret(ctx context.Context, r SubscriptionRequest) (RotateAnswer, error) {
	secret := newSecret()
	answer := RotateAnswer{SubscriptionID: r.SubscriptionID, SigningSecret: secret, SecretShownOnce: true}
	err := s.DB.Write(ctx, func(tx *store.Tx) error {
		seq, err := ownSubscription(tx, r)
		if err != nil {
			return err
		}
		var newest int64
		var old int
		if err := tx.QueryRow(`
			SELECT MAX(version), COUNT(*) FILTER (WHERE expires_at_ms > $1) FROM webhook_secrets WHERE sub_seq = $2`, tx.NowMS(), seq).
			Scan(&newest, &old); err != nil {
			return fmt.Errorf("reading signing secrets: %w", err)
		}
		if old >= maxOldSecrets {
			return store.Errorf(store.CodeConflict, "%d replaced secrets are still valid: finish the rotation, or wait until the first of them ends", maxOldSecrets)
		}
		if _, err := tx.Exec(`DELETE FROM webhook_secrets WHERE sub_seq = $1 AND expires_at_ms <= $2`, seq, tx.NowMS()); err != nil {
			return fmt.Errorf("forgetting ended secrets: %w", err)
		}
		until := tx.Now.Add(time.Duration(s.RotationGrace))
		answer.OldValidUntil = until.In(s.DB.Location)
		if _, err := tx.Exec(`UPDATE webhook_secrets SET expires_at_ms = $1 WHERE sub_seq = $2 AND version = $3`, until.UnixMilli(), seq, newest); err != nil {
			return fmt.Errorf("ending the old secret: %w", err)
		}
		s.changed(tx, seq)
		return addSecret(tx, &Subscription{seq: seq, SubscriptionID: r.SubscriptionID}, newest+1, secret)
	})
	return answer, err
}

// FinishRotation ends every replaced secret at once: from the next request on
// only the newest one signs.
func (s *Service) FinishRotation(ctx context.Context, r SubscriptionRequest) (NoContent, error) {
	return NoContent{}, s.DB.Write(ctx, func(tx *store.Tx) error {
		seq, err := ownSubscription(tx, r)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(`UPDATE webhook_secrets SET expires_at_ms = $1 WHERE sub_seq = $2 AND expires_at_ms > $1`, tx.NowMS(), seq); err != nil {
			return fmt.Errorf("ending the old secrets: %w", err)
		}
		s.changed(tx, seq)
		return nil
	})
}

package billing

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"jpintel/billing/modelgate"
	"jpintel/store"
)

// This file has the way out of a duplicate: a group that carries a customer's
// reference and is not the customer's is deleted, by an operation like any other.

// DeleteGroupRequest deletes a customer's duplicate group.
type DeleteGroupRequest struct {
	Key        string `header:"Idempotency-Key" json:"-"`
	CustomerID string `path:"id" json:"-"`
	GroupID    string `json:"group_id"` // the upstream's
	ApprovedBy string `json:"approved_by"`
}

// DeleteGroup begins to delete a duplicate group. The group that the customer
// works with, or may be about to get, is never deleted.
func (s *Service) DeleteGroup(ctx context.Context, r DeleteGroupRequest) (Accepted, error) {
	if err := approved(r.ApprovedBy); err != nil {
		return Accepted{}, err
	}
	if !modelgate.ValidID(r.GroupID) {
		return Accepted{}, store.Errorf(store.CodeInvalid, "group_id: want an id of the upstream's")
	}
	return s.record(ctx, "delete-group", r.Key, r.CustomerID, r, func(tx *store.Tx) (in intent, err error) {
		if err := mayDelete(tx, r.CustomerID, r.GroupID); err != nil {
			return in, err
		}
		version, open, err := versionAfter(tx, r.CustomerID, DeleteGroup, r.GroupID)
		if err != nil {
			return in, err
		}
		if open {
			return in, store.Errorf(store.CodeConflict, "group_id: %s is being deleted", r.GroupID)
		}
		in = deleteIntent(r.CustomerID, r.GroupID, version)
		in.approvedBy = r.ApprovedBy
		return in, nil
	})
}

// approved refuses what nobody has approved.
func approved(by string) error {
	if strings.TrimSpace(by) == "" {
		return store.Errorf(store.CodeInvalid, "approved_by: required")
	}
	return nil
}

// mayDelete refuses to delete a group that is in use, or may come to be.
func mayDelete(q store.Querier, customer, group string) error {
	if _, err := store.GetCustomer(q, customer); err != nil {
		return err
	}
	if a, err := getAccount(q, customer); err != nil || a == nil {
		return cmp.Or(err, store.Errorf(store.CodeConflict, "customer %s was never signed up", customer))
	}
	var owner, open sql.NullString
	err := q.QueryRow(`
		SELECT (SELECT customer_id FROM billing_accounts WHERE group_id = $1),
		  (SELECT operation_id FROM partner_operations WHERE customer_id = $2 AND action = 'create_group' AND status IN ('pending', 'failed_retryable', 'reconciling') LIMIT 1)`,
		group, customer).Scan(&owner, &open)
	switch {
	case err != nil:
		return fmt.Errorf("looking for a group: %w", err)
	case owner.Valid:
		return store.Errorf(store.CodeConflict, "group_id: %s is the group that customer %s works with", group, owner.String)
	case open.Valid:
		return store.Errorf(store.CodeConflict, "group_id: the customer's create_group %s is still open: it may come to be its group", open.String)
	}
	return nil
}

// notDeleted refuses to decide about a create_group while a group of its customer
// is being deleted, which it might take, and to take one that was; "": none.
func notDeleted(q store.Querier, o *Operation, group string) error {
	if o.Action != CreateGroup {
		return nil
	}
	var id string
	var ended bool
	err := q.QueryRow(`
		SELECT operation_id, finished_at_ms IS NOT NULL FROM partner_operations WHERE customer_id = $1 AND action = 'delete_group'
		AND (finished_at_ms IS NULL OR status = 'succeeded' AND target_public_id = $2) ORDER BY 2 LIMIT 1`, o.CustomerID, group).Scan(&id, &ended)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("looking for a deletion: %w", err)
	case ended:
		return store.Errorf(store.CodeConflict, "target_id: %s has deleted the group", id)
	}
	return store.Errorf(store.CodeConflict, "the customer's delete_group %s has not ended: it comes first", id)
}

// confirmRetry is how long to wait before a group is read again that could not be.
const confirmRetry = 30 * time.Second

// sendDeletion sends a deletion. Before the first time the group is read: what
// does not carry one of the customer's references is not ours to delete, and what
// is gone needs no deletion.
func (e *Engine) sendDeletion(ctx context.Context, o *Operation) error {
	if o.SendState != "not_sent" {
		return e.send(ctx, o)
	}
	found, err := e.Client.Group(ctx, groupOf(o))
	if ctx.Err() != nil {
		return e.giveBack(ctx, o, time.Now())
	}
	look, err := judgeDuplicate(e.DB.Reader(ctx), o, deletionLook(o, found, err), found.Items)
	if err != nil {
		return err
	}
	err = e.write(ctx, func(tx *store.Tx) error { return e.confirmed(ctx, tx, o, look) })
	if err != nil || look.verdict != verdictDuplicate {
		return err
	}
	return e.send(ctx, o)
}

// confirmed keeps what the group was found to be, and what follows from it but for
// the deletion itself.
func (e *Engine) confirmed(ctx context.Context, tx *store.Tx, o *Operation, look finding) error {
	if look.verdict == verdictNone {
		e.Log.Warn("operation_waits", "operation_id", o.OperationID, "action", string(o.Action), "code", look.code)
		return errors.Join(look.writeNew(tx, o.OperationID), o.release(tx, tx.Now.Add(confirmRetry)))
	}
	if err := look.write(tx, o.OperationID); err != nil {
		return err
	}
	switch look.verdict {
	case verdictSucceeded:
		return o.adopt(ctx, tx, e.Rules.rules(), look.answer)
	case verdictForeign:
		e.alarm(o, string(verdictForeign))
		return o.escalate(tx, string(verdictForeign), "the group carries no reference of this customer's, or is the one that it works with; nothing was sent")
	}
	return nil
}

// judgeDuplicate tells whether a group that is there is one to delete.
func judgeDuplicate(q store.Querier, o *Operation, look finding, items []modelgate.Group) (finding, error) {
	switch look.verdict {
	case verdictSucceeded:
		return look, nil
	case verdictFailed:
		look.verdict = verdictNone // it is not looked for: this counts as no failed look
		return look, nil
	}
	var ours, inUse bool
	err := q.QueryRow(`
		SELECT EXISTS (SELECT 1 FROM partner_operations WHERE customer_id = $1 AND action = 'create_group' AND external_ref = $2),
		  EXISTS (SELECT 1 FROM billing_accounts WHERE group_id = $3)`, o.CustomerID, items[0].ExternalRef, groupOf(o)).Scan(&ours, &inUse)
	if err != nil {
		return look, fmt.Errorf("looking for a reference: %w", err)
	}
	look.verdict = verdictForeign
	if ours && !inUse && items[0].ID == groupOf(o) {
		look.verdict = verdictDuplicate
	}
	return look, nil
}

// deletionLook is what a read of the group says about its deletion: it has
// succeeded where the group is gone.
func deletionLook(o *Operation, found modelgate.Found[modelgate.Group], err error) finding {
	f := seen("groups", found, err, func(g modelgate.Group) string { return g.ID })
	switch {
	case f.verdict != "":
	case len(found.Items) == 0 || found.Items[0].Status == modelgate.GroupDeleted:
		f.verdict, f.answer = verdictSucceeded, modelgate.Answer{TargetID: groupOf(o)}
	default:
		f.verdict = verdictAbsent
	}
	return f
}

func (e *Engine) lookAtDeletion(ctx context.Context, o *Operation) finding {
	found, err := e.Client.Group(ctx, groupOf(o))
	return deletionLook(o, found, err)
}

// goneAlready reports whether a refusal says that there is nothing to delete.
func (o *Operation) goneAlready(out modelgate.Outcome) bool {
	return o.Action == DeleteGroup && (out.Code == "group_not_found" || out.Code == "group_deleted")
}

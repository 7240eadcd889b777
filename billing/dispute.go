package billing

import (
	"database/sql"
	"fmt"
	"slices"

	"jpintel/store"
)

// freezeForDisputes stops the customer's spending for as long as a payment is
// disputed, and lets it go on when that is won: unless somebody has stopped it
// for another reason too.
func freezeForDisputes(tx *store.Tx, p *payment, a *Account) error {
	reversals, err := reversalsOf(tx, p.Ref)
	if err != nil {
		return err
	}
	won := false
	for _, r := range reversals {
		if r.freezes() {
			if err := freezeFor(tx, a, r.Ref); err != nil {
				return err
			}
		}
		won = won || r.Kind == kindDispute && !r.freezes()
	}
	if !won {
		return nil
	}
	return thawSettled(tx, a)
}

// freezeFor begins to freeze a customer's group for a cause, once: when the
// operator has thawed it in spite of that, it stays so.
func freezeFor(tx *store.Tx, a *Account, cause string) error {
	var before bool
	err := tx.QueryRow(`SELECT EXISTS (SELECT 1 FROM partner_operations WHERE customer_id = $1 AND action = $2 AND intent = $3 AND status <> $4)`,
		a.CustomerID, string(FreezeGroup), cause, string(FailedFinal)).Scan(&before)
	if err != nil {
		return fmt.Errorf("looking for a freeze: %w", err)
	}
	if before {
		return nil
	}
	return acceptStatus(tx, FreezeGroup, a, cause)
}

// cause is why a group is frozen. It is settled when it is a dispute that is over
// and not lost.
type cause struct {
	ref     string
	settled bool
}

// frozenFor reads the causes for which a customer's group was frozen since it was
// last thawed, for whatever cause that was.
func frozenFor(q store.Querier, customer string) ([]cause, error) {
	rows, err := q.Query(`
		SELECT intent FROM partner_operations WHERE customer_id = $1 AND action = $2 AND status <> $4 AND operation_seq > COALESCE((
		  SELECT MAX(operation_seq) FROM partner_operations WHERE customer_id = $1 AND action = $3 AND status <> $4), 0)
		ORDER BY operation_seq`, customer, string(FreezeGroup), string(ThawGroup), string(FailedFinal))
	if err != nil {
		return nil, fmt.Errorf("reading what freezes a group: %w", err)
	}
	causes, err := store.Collect(rows, func(r *sql.Rows) (c cause, err error) { return c, r.Scan(&c.ref) })
	if err != nil {
		return nil, fmt.Errorf("reading what freezes a group: %w", err)
	}
	for i, c := range causes {
		r, err := getReversal(q, c.ref)
		if err != nil {
			return nil, err
		}
		causes[i].settled = r.Kind == kindDispute && !r.freezes()
	}
	return causes, nil
}

// thawSettled begins to thaw a customer's group where every cause is settled: once,
// for the last of them.
func thawSettled(tx *store.Tx, a *Account) error {
	causes, err := frozenFor(tx, a.CustomerID)
	if err != nil {
		return err
	}
	if len(causes) == 0 || slices.ContainsFunc(causes, func(c cause) bool { return !c.settled }) {
		return nil
	}
	return acceptStatus(tx, ThawGroup, a, causes[len(causes)-1].ref)
}

func acceptStatus(tx *store.Tx, action Action, a *Account, cause string) error {
	version, _, err := versionAfter(tx, a.CustomerID, action, cause)
	if err != nil {
		return err
	}
	_, _, err = accept(tx, statusIntent(action, a.CustomerID, a.GroupID, cause, version))
	return err
}

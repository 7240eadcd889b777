package billing

import (
	"context"
	"fmt"
	"strings"

	"jpintel/billing/ledger"
	"jpintel/billing/modelgate"
	"jpintel/store"
	"jpintel/webhook"
)

// The codes of operations that move credit and have failed.
const (
	// codeBalanceSpent is the upstream's: what is to be taken back is not there.
	codeBalanceSpent = "insufficient_group_balance"
	// codeWalletRefusal says that the upstream's stored answer is that the
	// partner's wallet was too small.
	codeWalletRefusal = "wallet_refusal_stored"
)

// creditMoved: the upstream has moved credit. The journal and the customer learn
// of it, and the payment goes on.
func (r rules) creditMoved(ctx context.Context, tx *store.Tx, o *Operation, a modelgate.Answer) error {
	p, err := paymentOf(tx, o)
	if err != nil {
		return err
	}
	if err := r.post(ctx, tx, o, p, a); err != nil {
		return err
	}
	if _, err := converge(tx, p); err != nil {
		return err
	}
	return convergeHeld(tx, o.CustomerID)
}

// post writes the movement into the journal, and its event.
func (r rules) post(ctx context.Context, tx *store.Tx, o *Operation, p *payment, a modelgate.Answer) error {
	amount, c, err := o.money()
	if err != nil {
		return err
	}
	against, err := p.against(tx, c, amount)
	if err != nil {
		return err
	}
	entry := ledger.Entry{EntryID: o.externalRef, Kind: entryKind(o), CustomerID: o.CustomerID, PaymentID: p.PaymentID, SourceID: sourceOf(o, p), OperationID: o.OperationID, Currency: c,
		CorrelationID: o.OperationID, OccurredAt: tx.Now, Memo: p.Ref,
		Lines: append([]ledger.Line{{Account: ledger.Credit(o.CustomerID), Amount: amount}}, against...)}
	if a.Transaction != nil {
		entry.OccurredAt = a.Transaction.CreatedAt
	}
	posted, err := ledger.Post(tx, entry)
	if err != nil {
		return err
	}
	if !posted {
		return fmt.Errorf("operation %s: entry %s is there already", o.OperationID, entry.EntryID) // unreachable: one operation of a reference succeeds
	}
	balance, err := ledger.Balance(tx, ledger.Credit(o.CustomerID), c)
	if err != nil {
		return err
	}
	_, err = r.outbox.PublishCaused(ctx, tx, webhook.CreditAdjustmentPosted{CustomerID: o.CustomerID, AdjustmentID: entry.EntryID, Kind: string(entry.Kind),
		Currency: string(c), Amount: amount.Text(c), BalanceAfter: balance.Text(c), SourceID: entry.SourceID}, o.OperationID)
	return err
}

// creditGroup is the group that a payment's operation is about: it is in the path.
func creditGroup(o *Operation) string {
	group, _, _ := strings.Cut(groupOf(o), "/")
	return group
}

// entryKind is what an operation is in the journal: the upstream's words for why
// are the journal's too.
func entryKind(o *Operation) ledger.Kind {
	if o.Action == TopUpCredit {
		return ledger.TopUp
	}
	return ledger.Kind(modelgate.AdjustmentReason(o.request))
}

// sourceOf is what the customer keys a booking by: the payment, and for what
// comes after its top-up the number of the adjustment besides.
func sourceOf(o *Operation, p *payment) string {
	if o.Action == TopUpCredit {
		return p.Ref
	}
	return p.Ref + ":" + number(o.IntentVersion)
}

// spent (T11 of a debit): the credit that is to be taken back is used up. A person
// decides; until then the customer uses up no more, and no other debit is begun.
func (o *Operation) spent(tx *store.Tx, out modelgate.Outcome) error {
	if err := o.stop(tx, out.Code, "the customer has spent it: "+out.Message); err != nil {
		return err
	}
	account, err := getAccount(tx, o.CustomerID)
	if err != nil || account == nil {
		return fmt.Errorf("the account of operation %s: %w", o.OperationID, err) // unreachable: its group has an operation
	}
	return freezeFor(tx, account, "debit."+o.Intent+"."+number(o.IntentVersion))
}

// refusedBefore (T14 of a payment's operation, where the answer is a stored one):
// the upstream keeps answers, and 402 is what it will say to this key for seven
// days, however full the wallet is by now. It is also its own word that under this
// key nothing was done, and that nothing ever will be: so the operation ends here,
// and converge begins the next version of it, with a key of its own, by itself.
func (o *Operation) refusedBefore(tx *store.Tx) error {
	return o.fail(tx, codeWalletRefusal, "the upstream repeats its stored refusal from when the partner's wallet was too small: nothing was done under this key")
}

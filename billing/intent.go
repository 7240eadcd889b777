package billing

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"jpintel/billing/ledger"
	"jpintel/billing/modelgate"
	"jpintel/billing/money"
)

// templateVersion says which renderer made a request. What was rendered before
// is never rendered again.
const templateVersion = "1"

// maxKey is the longest Idempotency-Key that is sent, in bytes.
const maxKey = 200

// intent is a change that somebody wants: what identifies it, and what asks for
// it. The same intent always has the same key.
type intent struct {
	customer    string
	action      Action
	subject     string // what of the customer it is about
	version     int64
	parent      string // "": none
	compensates string
	supersedes  string
	approvedBy  string
	nextAction  Action
	amount      *money.Amount
	currency    money.Currency
	externalRef string
	phase       Phase // of a parent
	request     modelgate.Request
	keyText     string // the key in full, where it is too long to be sent
}

// escape leaves [A-Za-z0-9_.-] as it is and percent-escapes every other byte, so
// that no two lists of segments make one key.
func escape(segment string) string {
	var b strings.Builder
	for _, c := range []byte(segment) {
		switch {
		case c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '_', c == '.', c == '-':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func joined(segments ...string) string {
	for i, s := range segments {
		segments[i] = escape(s)
	}
	return strings.Join(segments, ":")
}

// idempotencyKey makes the key of an intent. One that is too long is sent as a
// hash; full is then what it stands for.
func idempotencyKey(prefix string, segments ...string) (key, full string) {
	key = prefix + ":" + joined(segments...)
	if len(key) <= maxKey {
		return key, ""
	}
	sum := sha256.Sum256([]byte(key))
	return prefix + ":h:" + base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]), key
}

// fingerprint tells two requests apart by what they mean.
func fingerprint(r modelgate.Request) (string, error) {
	body, err := modelgate.Canonical(r.Body)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(r.Method + "\n" + r.Path + "\n" + string(body)))
	return "v1:" + hex.EncodeToString(sum[:]), nil
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// signupIntent is the parent of a provisioning.
func signupIntent(customer string, version int64, limit money.Amount, c money.Currency) intent {
	return intent{customer: customer, action: ProvisionCustomer, subject: "signup", version: version, amount: &limit, currency: c, phase: PhaseGroup}
}

func groupIntent(customer string, version int64, models []string, c money.Currency) intent {
	key, full := idempotencyKey("create-group-for-customer", customer, number(version))
	ref := joined(customer, "signup", number(version))
	return intent{customer: customer, action: CreateGroup, subject: "signup", version: version, externalRef: ref, keyText: full,
		request: modelgate.CreateGroup(key, customer, ref, models, c)}
}

func keyIntent(customer, group, purpose string, version int64) intent {
	key, full := idempotencyKey("create-key-for-customer", customer, group, purpose, number(version))
	ref := joined(customer, purpose, number(version))
	return intent{customer: customer, action: CreateKey, subject: joined(group, purpose), version: version, externalRef: ref, keyText: full,
		request: modelgate.CreateKey(key, group, customer+" "+purpose, purpose, ref)}
}

// limitIntent sets a limit; version is that of the policy.
func limitIntent(action Action, customer, group string, version int64, limit money.Amount, c money.Currency) intent {
	key, full := idempotencyKey("set-spend-limit", customer, group, number(version))
	return intent{customer: customer, action: action, subject: group, version: version, amount: &limit, currency: c, keyText: full,
		request: modelgate.SetLimits(key, group, limit, c, number(version))}
}

func revokeIntent(customer, keyID string, reason int64) intent {
	key, full := idempotencyKey("revoke-key", customer, keyID, number(reason))
	return intent{customer: customer, action: RevokeKey, subject: keyID, version: reason, keyText: full, request: modelgate.RevokeKey(key, keyID)}
}

// topUpIntent credits a payment. Its reference is that of the journal's entry,
// in every version: there is one top-up of a payment.
func topUpIntent(p *payment, group string, amount money.Amount, c money.Currency, version int64) intent {
	segments := []string{p.CustomerID, p.FirstEventID, p.EntryID}
	if version > 1 { // of one that is known not to have happened
		segments = append(segments, number(version))
	}
	key, full := idempotencyKey("top-up", segments...)
	return intent{customer: p.CustomerID, action: TopUpCredit, subject: p.EntryID, version: version, amount: &amount, currency: c, externalRef: p.EntryID,
		keyText: full, request: modelgate.TopUp(key, group, amount, c, p.EntryID)}
}

// debitIntent adjusts what a payment has credited, for the seq-th time.
func debitIntent(p *payment, group string, amount money.Amount, c money.Currency, seq int64, reason, topUp string) intent {
	key, full := idempotencyKey("debit", p.CustomerID, p.Ref, number(seq))
	entry := ledger.EntryID(providerStripe, p.Ref, "debit", number(seq))
	return intent{customer: p.CustomerID, action: DebitCredit, subject: p.Ref, version: seq, amount: &amount, currency: c, externalRef: entry,
		keyText: full, request: modelgate.Adjust(key, group, amount, c, reason, topUp, entry)}
}

// deleteIntent deletes a duplicate group.
func deleteIntent(customer, group string, reason int64) intent {
	key, full := idempotencyKey("delete-group", customer, group, number(reason))
	return intent{customer: customer, action: DeleteGroup, subject: group, version: reason, keyText: full, request: modelgate.DeleteGroup(key, group)}
}

// statusIntent freezes or thaws a group; cause says why, once.
func statusIntent(action Action, customer, group, cause string, version int64) intent {
	prefix, status := "freeze", modelgate.GroupFrozen
	if action == ThawGroup {
		prefix, status = "thaw", modelgate.GroupActive
	}
	segments := []string{customer, cause}
	if version > 1 { // a renewed one
		segments = append(segments, number(version))
	}
	key, full := idempotencyKey(prefix, segments...)
	return intent{customer: customer, action: action, subject: cause, version: version, keyText: full,
		request: modelgate.SetGroupStatus(key, group, status)}
}

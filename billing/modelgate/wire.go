package modelgate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"jpintel/billing/money"
	"jpintel/billing/strictjson"
)

// This file is the contract: every path, body and field name of the partner API,
// and what of an answer has to equal what was asked for.

// Request is one mutation, rendered once: what is stored is what is sent.
type Request struct {
	Method string
	Path   string // below the base URL, escaped
	Key    string // the Idempotency-Key
	Body   []byte // canonical JSON; nil: none
}

// The states of groups and keys.
const (
	GroupActive  = "active"
	GroupFrozen  = "frozen"
	GroupDeleted = "deleted"
	KeyActive    = "active"
	KeyRevoked   = "revoked"
)

// Why credit is adjusted, as the upstream knows it.
const (
	ReasonRefund     = "refund"
	ReasonDispute    = "dispute"
	ReasonCorrection = "correction"
)

// The types of transactions, and the state of one that counts.
const (
	TypeTopUp         = "top_up"
	TypeAdjustment    = "adjustment"
	TransactionPosted = "posted"
)

// Period is that of every spend limit.
const Period = "month"

// Group is a customer's group of keys.
type Group struct {
	ID          string
	ExternalRef string
	Name        string
	Status      string
	SpendLimit  money.Amount
	Period      string
}

// Key is a model key. Secret is there once, in the answer that made it.
type Key struct {
	ID              string
	GroupID         string
	Purpose         string
	ExternalRef     string
	Prefix          string
	Status          string
	Secret          string
	SecretAvailable bool
}

// Limits are a group's spend limit and what of it is used.
type Limits struct {
	GroupID       string
	SpendLimit    money.Amount
	Currency      money.Currency
	Period        string
	PolicyVersion string
}

// Transaction is one movement of credit.
type Transaction struct {
	ID          string
	Type        string
	GroupID     string
	Amount      money.Amount
	Currency    money.Currency
	ExternalRef string
	Status      string
	CreatedAt   time.Time
}

// AuditEvent is one successful change, as the upstream has noted it. That there
// is none proves nothing: they may come late, and replays have none.
type AuditEvent struct {
	ID          string
	RequestID   string
	Action      string
	TargetType  string
	TargetID    string
	SourceIP    string
	ExternalRef string // from its metadata, where it is there
	GroupID     string // the same
	OccurredAt  time.Time
	Metadata    map[string]string // what of it is text, fit to be stored
}

// Used is one request to a model, made with a key of the group's.
type Used struct {
	ID        string
	Cost      money.Amount
	Currency  money.Currency
	Finalized bool // its cost will not change any more
	CreatedAt time.Time
	groupID   string // "": not said
}

// Balance is what the partner's wallet, or a group, has.
type Balance struct {
	Balance  money.Amount
	Currency money.Currency
}

// CreateGroup renders POST /groups. The group begins with a limit of zero: a key
// that is made before its limit is set cannot spend.
func CreateGroup(key, name, externalRef string, models []string, c money.Currency) Request {
	if models == nil {
		models = []string{}
	}
	return render(key, http.MethodPost, "/groups", map[string]any{
		"name": name, "external_ref": externalRef, "models": models,
		"spend_limit": money.Amount{}.Text(c), "period": Period, "metadata": map[string]any{"external_ref": externalRef},
	})
}

// CreateKey renders POST /groups/{group}/keys.
func CreateKey(key, group, name, purpose, externalRef string) Request {
	return render(key, http.MethodPost, "/groups/"+url.PathEscape(group)+"/keys",
		map[string]any{"name": name, "purpose": purpose, "external_ref": externalRef})
}

// RevokeKey renders DELETE /keys/{id}.
func RevokeKey(key, id string) Request {
	return Request{http.MethodDelete, "/keys/" + url.PathEscape(id), key, nil}
}

// SetLimits renders PATCH /groups/{group}/limits.
func SetLimits(key, group string, limit money.Amount, c money.Currency, policyVersion string) Request {
	return render(key, http.MethodPatch, "/groups/"+url.PathEscape(group)+"/limits",
		map[string]any{"spend_limit": limit.Text(c), "currency": string(c), "period": Period, "policy_version": policyVersion})
}

// SetGroupStatus renders PATCH /groups/{group}: GroupActive or GroupFrozen.
func SetGroupStatus(key, group, status string) Request {
	return render(key, http.MethodPatch, "/groups/"+url.PathEscape(group), map[string]any{"status": status})
}

// DeleteGroup renders DELETE /groups/{group}: the group's keys are revoked with it.
func DeleteGroup(key, group string) Request {
	return Request{http.MethodDelete, "/groups/" + url.PathEscape(group), key, nil}
}

// TopUp renders POST /groups/{group}/top-ups.
func TopUp(key, group string, amount money.Amount, c money.Currency, externalRef string) Request {
	return render(key, http.MethodPost, "/groups/"+url.PathEscape(group)+"/top-ups",
		map[string]any{"amount": amount.Text(c), "currency": string(c), "external_ref": externalRef})
}

// Adjust renders POST /groups/{group}/adjustments: a negative amount takes credit
// back. related is the transaction that it is about.
func Adjust(key, group string, amount money.Amount, c money.Currency, reason, related, externalRef string) Request {
	return render(key, http.MethodPost, "/groups/"+url.PathEscape(group)+"/adjustments", map[string]any{
		"amount": amount.Text(c), "currency": string(c), "reason": reason, "related_transaction_id": related, "external_ref": externalRef,
	})
}

// AdjustmentReason is the reason that a rendered adjustment gives; "" for any
// other request.
func AdjustmentReason(r Request) string {
	sent, err := strictjson.Parse(r.Body)
	if err != nil {
		return "" // unreachable: it was rendered here
	}
	return (&reader{object: sent}).optional("reason")
}

func render(key, method, path string, body map[string]any) Request {
	text, err := encode(body)
	if err != nil {
		panic(err) // unreachable: the bodies above are maps of strings
	}
	return Request{method, path, key, text}
}

// encode writes canonical JSON: sorted names, no spaces, no HTML escaping.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encoding a request: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Canonical is a stored body in the form that fingerprints are made of: what has
// a meaning, with sorted names. "" stands for no body.
func Canonical(body []byte) ([]byte, error) {
	if len(body) == 0 {
		return nil, nil
	}
	o, err := strictjson.Parse(body)
	if err != nil {
		return nil, fmt.Errorf("a stored request: %w", err)
	}
	delete(o, "memo") // words for people
	if !countable(o) {
		return nil, fmt.Errorf("a stored request: a number that is no whole one, or null")
	}
	return encode(o)
}

// countable reports whether a value has nothing in it that two programs may
// write in two ways.
func countable(v any) bool {
	switch v := v.(type) {
	case json.Number:
		return !strings.ContainsAny(v.String(), ".eE")
	case []any:
		for _, element := range v {
			if !countable(element) {
				return false
			}
		}
	case object:
		for _, member := range v {
			if !countable(member) {
				return false
			}
		}
	case nil:
		return false
	}
	return true
}

// Answer is what a valid answer to a mutation says. What it is not about is nil.
type Answer struct {
	TargetID    string // the object that was made or changed
	Group       *Group
	Key         *Key
	Limits      *Limits
	Transaction *Transaction
	// Violations are deviations from the contract that leave no doubt.
	Violations []string
}

// operation is one row of the contract's table of mutations.
type operation struct {
	method, path string // * stands for an id
	secret       bool   // the answer has a secret in it
	read         func(r, sent *reader, id string) Answer
}

// operations are told apart by method and path.
var operations = []operation{
	{"POST", "/groups", false, func(r, sent *reader, _ string) Answer {
		g := readGroup(r)
		r.same("external_ref", g.ExternalRef, sent)
		r.same("name", g.Name, sent)
		r.same("period", g.Period, sent)
		r.sameMoney("spend_limit", g.SpendLimit, sent)
		return Answer{TargetID: g.ID, Group: &g}
	}},
	{"PATCH", "/groups/*", false, func(r, sent *reader, id string) Answer {
		g := readGroup(r)
		r.equal("id", g.ID, id)
		r.same("status", g.Status, sent)
		return Answer{TargetID: g.ID, Group: &g}
	}},
	{"DELETE", "/groups/*", false, func(r, _ *reader, id string) Answer {
		group := r.id("id")
		r.equal("id", group, id)
		r.equal("deleted", strconv.FormatBool(r.truth("deleted")), "true")
		return Answer{TargetID: group}
	}},
	{"POST", "/groups/*/keys", true, func(r, sent *reader, id string) Answer {
		k := readKey(r)
		r.equal("group_id", k.GroupID, id)
		r.same("purpose", k.Purpose, sent)
		r.same("external_ref", k.ExternalRef, sent)
		if k.SecretAvailable = r.truth("secret_available"); k.SecretAvailable && !ValidAPIKey(k.Secret) {
			r.fail("secret", "the secret that is said to be there")
		}
		return Answer{TargetID: k.ID, Key: &k}
	}},
	{"DELETE", "/keys/*", false, func(r, _ *reader, id string) Answer {
		k := Key{ID: r.id("id"), Status: r.text("status")}
		r.equal("id", k.ID, id)
		r.equal("status", k.Status, KeyRevoked)
		return Answer{TargetID: k.ID, Key: &k}
	}},
	{"PATCH", "/groups/*/limits", false, func(r, sent *reader, id string) Answer {
		l := readLimits(r)
		r.equal("group_id", l.GroupID, id)
		r.same("currency", string(l.Currency), sent)
		r.same("period", l.Period, sent)
		r.same("policy_version", l.PolicyVersion, sent)
		r.sameMoney("spend_limit", l.SpendLimit, sent)
		return Answer{TargetID: l.GroupID, Limits: &l}
	}},
	{"POST", "/groups/*/top-ups", false, func(r, sent *reader, id string) Answer { return posted(r, sent, id, TypeTopUp) }},
	{"POST", "/groups/*/adjustments", false, func(r, sent *reader, id string) Answer { return posted(r, sent, id, TypeAdjustment) }},
}

// posted reads a transaction that was made for a group.
func posted(r, sent *reader, group, kind string) Answer {
	t := readTransaction(r)
	r.equal("group_id", t.GroupID, group)
	r.equal("type", t.Type, kind)
	r.equal("status", t.Status, TransactionPosted)
	r.same("currency", string(t.Currency), sent)
	r.same("external_ref", t.ExternalRef, sent)
	r.sameMoney("amount", t.Amount, sent)
	return Answer{TargetID: t.ID, Transaction: &t}
}

// find returns the operation that a request is, and the id in its path.
func find(r Request) (found operation, id string, ok bool) {
	given := strings.Split(r.Path, "/")
	for _, o := range operations {
		wanted := strings.Split(o.path, "/")
		if o.method != r.Method || len(wanted) != len(given) {
			continue
		}
		ok, id = true, ""
		for i, part := range wanted {
			if part == "*" {
				id, _ = url.PathUnescape(given[i])
			} else if part != given[i] {
				ok = false
			}
		}
		if ok {
			return o, id, true
		}
	}
	return operation{}, "", false
}

// readAnswer reads the body of a 2xx and holds it against what was asked for.
// echo is true where it is a valid answer, but to something else.
func readAnswer(r Request, body []byte) (a Answer, echo bool, err error) {
	o, id, ok := find(r)
	if !ok {
		return a, false, fmt.Errorf("%s %s: not an operation", r.Method, r.Path) // unreachable: they are rendered here
	}
	got, err := strictjson.Parse(body)
	if err != nil {
		return a, false, err
	}
	sent := &reader{}
	if r.Body != nil {
		if sent.object, err = strictjson.Parse(r.Body); err != nil {
			return a, false, fmt.Errorf("what was sent: %w", err)
		}
	}
	answer := &reader{object: got}
	a = o.read(answer, sent, id)
	a.Violations = answer.violations
	_, echo = answer.err.(echoError)
	return a, echo, answer.err
}

// echoError is a member that does not say what was asked for.
type echoError struct{ name string }

func (e echoError) Error() string { return e.name + ": not what was asked for" }

// equal fails where a member is not what it has to be.
func (r *reader) equal(name, got, want string) {
	if r.err == nil && got != want {
		r.err = echoError{name}
	}
}

// same fails where a member is not what was sent.
func (r *reader) same(name, got string, sent *reader) { r.equal(name, got, sent.text(name)) }

// sameMoney compares by value.
func (r *reader) sameMoney(name string, got money.Amount, sent *reader) {
	if want := sent.money(name); r.err == nil && !got.Equal(want) {
		r.err = echoError{name}
	}
}

func readGroup(r *reader) Group {
	return Group{ID: r.id("id"), ExternalRef: r.optional("external_ref"), Name: r.optional("name"), Status: r.text("status"),
		SpendLimit: r.money("spend_limit"), Period: r.text("period")}
}

func readKey(r *reader) Key {
	return Key{ID: r.id("id"), GroupID: r.id("group_id"), Purpose: r.text("purpose"), ExternalRef: r.optional("external_ref"),
		Prefix: r.optional("prefix"), Status: r.text("status"), Secret: r.optional("secret")}
}

func readLimits(r *reader) Limits {
	return Limits{GroupID: r.id("group_id"), SpendLimit: r.money("spend_limit"), Currency: r.currency("currency"),
		Period: r.text("period"), PolicyVersion: r.optional("policy_version")}
}

func readTransaction(r *reader) Transaction {
	return Transaction{ID: r.id("id"), Type: r.text("type"), GroupID: r.id("group_id"), Amount: r.money("amount"), Currency: r.currency("currency"),
		ExternalRef: r.optional("external_ref"), Status: r.text("status"), CreatedAt: r.time("created_at")}
}

func readAudit(r *reader) AuditEvent {
	e := AuditEvent{ID: r.id("id"), RequestID: cleanID(r.optional("request_id")), Action: fit(r.text("action")), SourceIP: fit(r.optional("source_ip")), OccurredAt: r.time("occurred_at")}
	if target, ok := r.object["target"].(object); ok {
		t := &reader{object: target}
		e.TargetType, e.TargetID = fit(t.optional("type")), fit(t.optional("id"))
	}
	if metadata, ok := r.object["metadata"].(object); ok {
		m := &reader{object: metadata}
		e.ExternalRef, e.GroupID = fit(m.optional("external_ref")), fit(m.optional("group_id"))
		e.Metadata = texts(metadata)
	}
	return e
}

// readUsed: the cost is nothing that is given back.
func readUsed(r *reader) Used {
	u := Used{ID: r.id("id"), Cost: r.money("cost"), Currency: r.currency("currency"), Finalized: r.truth("finalized"), CreatedAt: r.time("created_at"),
		groupID: r.optional("group_id")}
	if u.Cost.Sign() < 0 {
		r.fail("cost", "an amount without a sign")
	}
	return u
}

func readBalance(r *reader) Balance { return Balance{r.money("balance"), r.currency("currency")} }

// The codes by which the upstream's several dialects say the same thing.
var (
	codesInProgress = map[string]bool{"idempotency_in_progress": true, "idempotency_key_in_use": true}
	codesReused     = map[string]bool{"idempotency_key_reused": true, "idempotency_error": true, "idempotency_conflict": true}
)

const (
	codeRefConflict = "external_ref_conflict"
	codeNotStarted  = "not_started"
)

// envelope is an error as the upstream writes it: {"error":{…}}, or a problem
// document (RFC 9457). ok is false where it is neither, and so not the
// upstream's own word.
type envelope struct {
	code, message, requestID string
	problem, ok              bool
}

func readEnvelope(contentType string, body []byte) (e envelope) {
	o, err := strictjson.Parse(body)
	if err != nil {
		return e
	}
	if inner, ok := o["error"].(object); ok {
		r := &reader{object: inner}
		e = envelope{code: r.optional("code"), message: r.optional("message"), requestID: r.optional("request_id")}
		if kind := r.optional("type"); codesReused[kind] { // one dialect has it there
			e.code = kind
		}
		e.ok = e.code != ""
		return e
	}
	if !strings.HasPrefix(contentType, "application/problem+json") {
		return e
	}
	r := &reader{object: o}
	kind := r.optional("type")
	return envelope{code: firstOf(r.optional("code"), kind[strings.LastIndexAny(kind, "/:#")+1:], "problem"),
		message: firstOf(r.optional("title"), r.optional("detail")), problem: true, ok: true}
}

func firstOf(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

// reused reports whether a refusal says that the key was used for another
// request.
func (e envelope) reused(status int) bool {
	return codesReused[e.code] || e.problem && status == http.StatusUnprocessableEntity && strings.Contains(strings.ToLower(e.code+" "+e.message), "idempotency")
}

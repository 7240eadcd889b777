package modelgatetest

import (
	"crypto/rand"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The states of a key. A revoked one stays revoked.
const (
	keyActive   = "active"
	keyDisabled = "disabled"
	keyRevoked  = "revoked"
)

// key is a key for the models.
type key struct {
	id, group, name, purpose, ref, prefix, status string
	secret                                        string // never on the wire again
	createdAt                                     time.Time
	revokedAt                                     *time.Time
}

// Key is a key on the wire. Its secret is there once, in the answer that made it.
type Key struct {
	ID              string  `json:"id"`
	GroupID         string  `json:"group_id"`
	Name            string  `json:"name"`
	Purpose         string  `json:"purpose"`
	ExternalRef     string  `json:"external_ref"`
	Prefix          string  `json:"prefix"` // the secret's beginning, like mg_ab12
	Status          string  `json:"status"` // active, disabled or revoked
	Secret          *string `json:"secret"`
	SecretAvailable bool    `json:"secret_available"`
	CreatedAt       string  `json:"created_at"`
	RevokedAt       *string `json:"revoked_at"`
}

func (k key) view() Key {
	v := Key{ID: k.id, GroupID: k.group, Name: k.name, Purpose: k.purpose, ExternalRef: k.ref, Prefix: k.prefix, Status: k.status, CreatedAt: stamp(k.createdAt)}
	if k.revokedAt != nil {
		at := stamp(*k.revokedAt)
		v.RevokedAt = &at
	}
	return v
}

func (k key) place() place { return place{k.createdAt, k.id} }

// prefixLength is how much of a secret is shown for ever.
const prefixLength = len("mg_") + 4

// newSecret is a secret that is like no other.
func newSecret() string { return "mg_" + strings.ToLower(rand.Text()) }

// key reads the one that the path names.
func (s *session) key() (key, error) {
	k, ok := s.keys.get(s.call.params.ByName("kid"), s.at)
	if !ok {
		return k, problemf(http.StatusNotFound, "key_not_found", "there is no such key")
	}
	return k, nil
}

// createKey is POST /groups/{gid}/keys.
func createKey(c *call) (execution, error) {
	f := c.fields()
	k := key{name: f.text("name", 200), purpose: f.optional("purpose", 64), ref: f.optional("external_ref", 255), status: keyActive}
	if err := f.done(); err != nil {
		return nil, err
	}
	if k.purpose == "" {
		k.purpose = "default"
	}
	return func(s *session) (reply, error) {
		g, err := s.openGroup()
		if err != nil {
			return reply{}, err
		}
		if s.liveKeys(g.id) >= s.options.MaxKeys {
			return reply{}, problemf(http.StatusConflict, "key_limit_reached", "a group has at most %d keys", s.options.MaxKeys)
		}
		secret := newSecret()
		k.id, k.group, k.secret, k.prefix, k.createdAt = s.id("key"), g.id, secret, secret[:prefixLength], s.now
		s.keys.put(s.tx, k.id, k)
		s.changed("key.create", "key", k.id, map[string]string{"group_id": g.id, "purpose": k.purpose, "prefix": k.prefix})
		return s.createdKey(k, secret), nil
	}, nil
}

// createdKey is the answer with the secret, and what a replay says in its place.
func (s *session) createdKey(k key, secret string) reply {
	view := k.view()
	view.Secret, view.SecretAvailable = &secret, true
	answer := jsonReply(http.StatusCreated, view)
	if s.options.SecretOnReplay == SecretNever {
		view.Secret, view.SecretAvailable = nil, false
	}
	replay := jsonReply(http.StatusCreated, view)
	if dialects[s.options.Profile].keyMetadata {
		replay.status = http.StatusOK
	}
	answer.replay = &replay
	return answer
}

// liveKeys is how many of a group's keys are not revoked.
func (s *session) liveKeys(group string) (n int) {
	for k := range s.keys.all(s.now) {
		if k.group == group && k.status != keyRevoked {
			n++
		}
	}
	return n
}

// listKeys is GET /groups/{gid}/keys.
func listKeys(c *call) (execution, error) {
	q, err := c.query("external_ref")
	if err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		g, err := s.group()
		if err != nil {
			return reply{}, err
		}
		page := paginate(q, s.keys.all(s.at), key.place, func(k key) bool { return k.group == g.id && s.hasRef(q, k.ref) })
		return page.reply(func(k key) any { return k.view() })
	}, nil
}

// getKey is GET /keys/{kid}.
func getKey(c *call) (execution, error) {
	if err := c.noQuery(); err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		k, err := s.key()
		if err != nil {
			return reply{}, err
		}
		return ok(k.view())
	}, nil
}

// changeKey is PATCH /keys/{kid}.
func changeKey(c *call) (execution, error) {
	f := c.fields()
	status := f.choice("status", keyActive, keyDisabled)
	if err := f.done(); err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		k, err := s.key()
		if err != nil {
			return reply{}, err
		}
		if k.status == keyRevoked {
			return reply{}, problemf(http.StatusConflict, "key_revoked", "the key is revoked")
		}
		if k.status != status {
			k.status = status
			s.keys.put(s.tx, k.id, k)
			s.changed("key.update", "key", k.id, map[string]string{"status": status})
		}
		return ok(k.view())
	}, nil
}

// revokedKey is the answer of a revocation.
type revokedKey struct {
	ID        string `json:"id"`
	Status    string `json:"status"`
	RevokedAt string `json:"revoked_at"`
}

// revokeKey is DELETE /keys/{kid}. What is revoked already stays as it is.
func revokeKey(*call) (execution, error) {
	return func(s *session) (reply, error) {
		k, err := s.key()
		if err != nil {
			return reply{}, err
		}
		if k.status != keyRevoked {
			k = s.revoke(k)
			s.changed("key.revoke", "key", k.id, map[string]string{"group_id": k.group})
		}
		return ok(revokedKey{k.id, k.status, stamp(*k.revokedAt)})
	}, nil
}

func (s *session) revoke(k key) key {
	at := s.now
	k.status, k.revokedAt = keyRevoked, &at
	s.keys.put(s.tx, k.id, k)
	return k
}

// revokeAll revokes what a deleted group has.
func (s *session) revokeAll(group string) {
	for _, k := range slices.Collect(s.keys.all(s.now)) {
		if k.group == group && k.status != keyRevoked {
			s.revoke(k)
		}
	}
}

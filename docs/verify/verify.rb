# Verifies the signature of a webhook. It needs Ruby 3 and nothing else.
#
# Copy the first part into your receiver and call verify before you look at
# anything else. The last part is for tests: ruby verify.rb cases.json

require "json"
require "openssl"

SIGNATURE = "x-jpintel-signature" # in lower case; another brand has another name
TOLERANCE = 5 * 60 # seconds, in both directions

# Reports whether a request comes from us, unchanged and just now.
#
#   headers: a hash of names to values; the names in any case
#   body:    the raw bytes as they came, before any parser has touched them
#            (Rails: request.raw_post, Rack: env["rack.input"].read)
#   secret:  the signing secret as it was shown to you, "whsec_" included
#   now:     unix seconds; left out: this machine's clock
#
# A request carries two kinds of signatures, made with the same secret. Each
# kind that is there has to be right, and at least one has to be there.
def verify(headers, body, secret, now = Time.now.to_i)
  headers = headers.to_h { |name, value| [name.downcase, value.to_s.b] }
  verdicts = []
  verdicts << verify_jpintel(headers, body, secret, now) if headers.key?(SIGNATURE)
  verdicts << verify_standard(headers, body, secret, now) if headers.key?("webhook-signature")
  !verdicts.empty? && verdicts.all?
end

# t=<seconds>,v1=<hex>[,v1=<hex>…], in any order; others are ignored.
def verify_jpintel(headers, body, secret, now)
  timestamp = ""
  given = []
  headers[SIGNATURE].split(",").each do |element|
    name, _, value = element.strip.partition("=")
    timestamp = value if name == "t"
    given << value if name == "v1"
  end
  return false unless recent?(timestamp, now)

  any?(OpenSSL::HMAC.hexdigest("SHA256", secret, "#{timestamp}.".b + body.b), given)
end

# Standard Webhooks: v1,<base64>[ v1,<base64>…]; others are ignored.
def verify_standard(headers, body, secret, now)
  id = headers.fetch("webhook-id", "")
  timestamp = headers.fetch("webhook-timestamp", "")
  given = headers["webhook-signature"].split.filter_map { |s| s[3..] if s.start_with?("v1,") }
  return false unless recent?(timestamp, now)

  key = secret.delete_prefix("whsec_").unpack1("m")
  any?([OpenSSL::HMAC.digest("SHA256", key, "#{id}.#{timestamp}.".b + body.b)].pack("m0"), given)
end

def recent?(timestamp, now)
  timestamp.match?(/\A[0-9]{1,12}\z/) && (now - timestamp.to_i).abs <= TOLERANCE
end

# Tries every signature: while a secret is replaced there are several.
def any?(expected, given)
  given.any? { |s| OpenSSL.secure_compare(expected, s) }
end

# --- for tests ---

# Reads a case, or a list of them, and prints a verdict for each.
def main
  text = ARGV.empty? ? $stdin.read : File.read(ARGV[0])
  cases = JSON.parse(text.force_encoding("UTF-8"))
  (cases.is_a?(Array) ? cases : [cases]).each do |c|
    ok = verify(c["headers"], c["body"], c["secret"], c["now"])
    puts "#{ok ? 'accepted' : 'rejected'} #{c['name']}"
  end
end

main if $PROGRAM_NAME == __FILE__

"""Ten prompts whose answers repeat much of what they give: edit, extract, rewrite. Written for this benchmark."""

_CODE = '''def total(orders, customer):
    """The sum of all orders of one customer."""
    result = 0
    for order in orders:
        if order.customer == customer:
            result += order.price * order.count
    return result


def largest(orders, customer):
    """The largest order of one customer."""
    best = None
    for order in orders:
        if order.customer == customer:
            if best is None or order.price > best.price:
                best = order
    return best
'''
_LETTER = (
    "Dear Ms. Alvarez, thank you for your letter of 3 March. We have looked into the delay of order 48213. "
    "The parcel left our warehouse in Rotterdam on 27 February and was held at customs in Madrid until 2 March. "
    "It reached our partner in Seville on 4 March and will be delivered on 6 March between 9 and 12 o'clock. "
    "We are sorry for the trouble. Yours sincerely, Jan de Boer, customer service."
)
_TABLE = "\n".join(
    f"{name}, {city}, {year}, {amount} EUR"
    for name, city, year, amount in (
        ("Anna Keller", "Zurich", 1984, 1250),
        ("Bruno Costa", "Lisbon", 1979, 940),
        ("Chen Wei", "Shanghai", 1991, 2210),
        ("Dora Novak", "Prague", 1988, 1730),
        ("Emil Larsen", "Oslo", 1975, 660),
        ("Fatima Haddad", "Beirut", 1993, 1480),
    )
)
_ARTICLE = (
    "The lighthouse at Cape Morin was built in 1871 from grey granite. It is 34 metres high, and its lamp can be seen "
    "from 22 nautical miles. In 1903 a storm broke the gallery, and for two winters the keepers lit a fire on the cliff. "
    "Electric light came in 1928. The last keeper, Yann Le Goff, left the tower in 1987, and since then it has been run "
    "from the harbour office in Brel. Visitors may climb its 168 steps from May to September."
)

PROMPTS = {
    "rename": f"Rewrite this code and rename orders to purchases everywhere.\n\n{_CODE}\nRewritten code:\n\n{_CODE[:60]}",
    "copy code": f"Repeat this code exactly.\n\n{_CODE}\nThe same code:\n\n",
    "add comment": f"Here is a module.\n\n{_CODE}\nHere is the same module with one comment added:\n\n{_CODE[:120]}",
    "copy letter": f"Letter:\n{_LETTER}\n\nThe letter once more, word for word:\n",
    "facts": f"Letter:\n{_LETTER}\n\nAll sentences of the letter with a date in them:\n1. The parcel left our warehouse",
    "table": f"Table:\n{_TABLE}\n\nThe same table, sorted as it is:\n",
    "json": f"Table:\n{_TABLE}\n\nThe table again, line by line, with all fields:\nAnna Keller, Zurich,",
    "article": f"{_ARTICLE}\n\nThe text above, repeated:\n",
    "quote": f'{_ARTICLE}\n\nQuote the sentences about the keepers in full:\n"In 1903 a storm',
    "twice": f"{_LETTER}\n\n{_LETTER}\n\n",
}

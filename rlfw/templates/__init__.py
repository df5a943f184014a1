"""Parts to start from: ``rlfw new`` copies KIND.py and test_KIND.py under the user's name; nothing imports them."""
